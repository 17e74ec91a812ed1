//! The log of a program: which lines it has, by `SANDGLASS_LOG`.
//!
//! Used by the binaries. The variable holds a level (`debug`), or levels of modules with one for all others (`info,sandglass::cri=debug`).
//! Does not: print what a failed command reports.

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Writes the log to `writer` from now on, with `usual` lines where the environment demands no others, or others that cannot be parsed.
/// To be called once.
pub fn start(usual: Targets, writer: BoxMakeWriter, with_colours: bool) {
    let demanded = std::env::var(VARIABLE).ok().and_then(|text| parse(&text));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(with_colours)
        .with_writer(writer);
    tracing_subscriber::registry()
        .with(lines)
        .with(demanded.unwrap_or(usual))
        .init();
}

/// `None` of a text that says nothing, or cannot be parsed.
fn parse(text: &str) -> Option<Targets> {
    text.parse().ok().filter(|_| !text.trim().is_empty())
}

/// Lines of the level info and above.
#[must_use]
pub fn info() -> Targets {
    Targets::new().with_default(tracing::Level::INFO)
}

/// For a command that prints its failures as its result: without the export's warnings, which would repeat them.
#[must_use]
pub fn quiet() -> Targets {
    Targets::new()
        .with_default(tracing::Level::WARN)
        .with_target("sandglass::sinks::otlp", tracing::Level::ERROR)
}

/// The log goes to standard error.
#[must_use]
pub fn to_stderr() -> BoxMakeWriter {
    BoxMakeWriter::new(std::io::stderr)
}

/// The log goes to standard output.
#[must_use]
pub fn to_stdout() -> BoxMakeWriter {
    BoxMakeWriter::new(std::io::stdout)
}

const VARIABLE: &str = "SANDGLASS_LOG";

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_level_or_levels_of_modules_are_read() {
        let targets = parse("warn,sandglass::cri=debug").unwrap();
        assert!(targets.would_enable("sandglass::cri::client", &Level::DEBUG));
        assert!(targets.would_enable("sandglass", &Level::WARN) && !targets.would_enable("sandglass", &Level::INFO));
        assert!(parse("debug").unwrap().would_enable("any", &Level::DEBUG));
        for nothing in ["", " ", "sandglass=loud", "a=b=c"] {
            assert_eq!(parse(nothing), None, "{nothing:?}");
        }
    }
}
