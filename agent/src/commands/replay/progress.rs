//! A progress bar on standard error, on a terminal only.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use sandglass_model::Timestamp;

use crate::sources::clock;

/// A progress bar on a terminal.
pub struct ProgressLine {
    on: bool,
    shown: Instant,
    began: Timestamp,
}

impl ProgressLine {
    pub fn new() -> ProgressLine {
        ProgressLine {
            on: std::io::stderr().is_terminal(),
            shown: Instant::now(),
            began: clock::now(),
        }
    }

    pub fn show(&mut self, (read, total): (u64, u64)) {
        if !self.on || self.shown.elapsed() < Duration::from_millis(100) {
            return;
        }
        self.shown = Instant::now();
        let done = usize::try_from(read.saturating_mul(40) / total.max(1))
            .unwrap_or(40)
            .min(40);
        let seconds = clock::now().since(self.began) / 1_000_000_000;
        let bar = "#".repeat(done) + &".".repeat(40 - done);
        // A terminal that cannot be written to shows no progress.
        let _ = write!(
            std::io::stderr(),
            "\r[{bar}] {:3} %  {seconds} s",
            read * 100 / total.max(1)
        );
    }

    pub fn clear(&self) {
        if self.on {
            let _ = write!(std::io::stderr(), "\r{:60}\r", "");
        }
    }
}
