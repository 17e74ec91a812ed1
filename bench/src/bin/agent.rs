//! The agent of `sandglass run`, with hooks that can be detached and attached while it runs.
//!
//! `crate::agent` starts it with the address to listen on, and perhaps a network namespace that is to be the node's: a name
//! below `/run/netns`. `--no-waits` as the second argument switches the recording of waits off. It acknowledges each line of its standard input, `off` or `on`, with
//! the same line once that is done. It ends with its input, or by a signal.
//! Does not: read a configuration, query a container runtime, or log.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match agent::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            std::process::ExitCode::from(failure.exit().code())
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod agent {
    use std::io::{BufRead as _, Write as _};
    use std::path::PathBuf;

    use sandglass::app::{self, App, StartOptions};
    use sandglass::config::Config;
    use sandglass::failure::Failure;
    use sandglass::resident;

    pub fn run() -> Result<(), Failure> {
        resident::keep_small();
        let address = std::env::args().nth(1).and_then(|address| address.parse().ok());
        let mut config = Config::default();
        config.http.address =
            address.ok_or_else(|| Failure::usage("needs the address to listen on", "give 127.0.0.1:PORT"))?;
        "none".clone_into(&mut config.cri.endpoint);
        let second = std::env::args().nth(2);
        config.waits.enabled = second.as_deref() != Some("--no-waits");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(failed)?;
        let options = StartOptions {
            serve: true,
            node_netns: second
                .filter(|_| config.waits.enabled)
                .map(|name| PathBuf::from("/run/netns").join(name)),
            ..StartOptions::default()
        };
        let mut app = runtime.block_on(app::start(&config, options))?;
        follow_orders(&mut app)?;
        runtime.block_on(app.stop()).map(|_| ())
    }

    /// Runs until the input ends.
    fn follow_orders(app: &mut App) -> Result<(), Failure> {
        let mut answers = std::io::stdout().lock();
        for order in std::io::stdin().lock().lines() {
            let order = order.map_err(failed)?;
            let hooked = match order.as_str() {
                "off" => false,
                "on" => true,
                _ => {
                    return Err(Failure::usage(
                        format!("no such order: {order}"),
                        "the orders are on and off",
                    ));
                }
            };
            app.source.set_hooked(hooked).map_err(failed)?;
            writeln!(answers, "{order}")
                .and_then(|()| answers.flush())
                .map_err(failed)?;
        }
        Ok(())
    }

    fn failed(error: impl std::fmt::Display) -> Failure {
        Failure::runtime(error, "")
    }
}
