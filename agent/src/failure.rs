//! How errors reach a user: the error with its causes on one line, a `hint:` line that names the fix, an exit code.
//!
//! Every command ends in a [`Failure`]. Errors of the agent's parts that can end a command implement [`Advice`] and
//! convert into one with `?`. A leaf: it knows none of those errors. Does not: print (`main` does).

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// Exit codes of the program; the numbers above 1 are those of `sysexits.h` (BSD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitReason {
    /// Something failed at run time.
    Runtime = 1,
    /// The command line or the configuration is wrong (`EX_USAGE`).
    Usage = 64,
    /// The kernel or the operating system lacks a feature (`EX_UNAVAILABLE`).
    Unavailable = 69,
    /// A privilege is missing (`EX_NOPERM`).
    NoPermission = 77,
}

impl ExitReason {
    /// The number.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// An error that comes with advice for the user.
pub trait Advice: Error {
    /// The fix to try, without a final period. Empty when none is known.
    fn hint(&self) -> Cow<'_, str>;

    /// Exit code of a command that ends with this error.
    fn exit(&self) -> ExitReason {
        ExitReason::Runtime
    }
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: String,
    exit: ExitReason,
}

impl Failure {
    /// A failure with its message (lower case, no final period), hint and exit code.
    pub fn new(exit: ExitReason, message: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure {
            message: message.to_string(),
            hint: hint.into(),
            exit,
        }
    }

    /// Something failed at run time.
    pub fn runtime(message: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure::new(ExitReason::Runtime, message, hint)
    }

    /// The command line or the configuration is wrong.
    pub fn usage(message: impl fmt::Display, hint: impl Into<String>) -> Failure {
        Failure::new(ExitReason::Usage, message, hint)
    }

    /// The agent itself is wrong.
    pub fn defect(message: impl fmt::Display) -> Failure {
        Failure::runtime(message, "this is a defect of sandglass; please report it")
    }

    /// The exit code.
    #[must_use]
    pub fn exit(&self) -> ExitReason {
        self.exit
    }
}

impl<E: Advice + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error.exit(), causes(&error), error.hint())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.hint.is_empty() {
            true => Ok(()),
            false => write!(f, "\nhint: {}", self.hint),
        }
    }
}

impl Error for Failure {}

/// An error and its causes, joined by colons. A cause that the text before already ends with is left out: some errors
/// repeat their source.
#[must_use]
pub fn causes(error: &(dyn Error + 'static)) -> String {
    joined(error, str::to_owned)
}

/// As [`causes`], with only the first line of each: without the log of the BPF verifier.
#[must_use]
pub fn causes_in_short(error: &(dyn Error + 'static)) -> String {
    joined(error, |text| text.lines().next().unwrap_or_default().to_owned())
}

fn joined(error: &(dyn Error + 'static), cut: impl Fn(&str) -> String) -> String {
    let mut text = cut(&error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        let part = cut(&cause.to_string());
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = cause.source();
    }
    text
}

/// Hint of a thread that cannot be started.
pub const NO_THREADS: &str = "the node is out of threads or memory: raise the limits of the agent";

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot load: {why}")]
    struct Load {
        why: &'static str,
        #[source]
        source: std::io::Error,
    }

    impl Advice for Load {
        fn hint(&self) -> Cow<'_, str> {
            "load less".into()
        }

        fn exit(&self) -> ExitReason {
            ExitReason::Unavailable
        }
    }

    fn load(why: &'static str, cause: &'static str) -> Load {
        Load {
            why,
            source: std::io::Error::other(cause),
        }
    }

    #[test]
    fn each_cause_stands_once() {
        assert_eq!(causes(&load("refused", "no room")), "cannot load: refused: no room");
        assert_eq!(causes(&load("no room", "no room")), "cannot load: no room");
        let long = load("refused", "bad program\n0: r1 = 0\n1: exit");
        assert_eq!(causes_in_short(&long), "cannot load: refused: bad program");
        assert!(causes(&long).ends_with("1: exit"));
    }

    #[test]
    fn an_error_with_advice_becomes_a_failure() {
        let failure = Failure::from(load("refused", "no room"));
        assert_eq!(failure.to_string(), "cannot load: refused: no room\nhint: load less");
        assert_eq!(failure.exit().code(), 69);
        assert_eq!(Failure::runtime("it broke", "").to_string(), "it broke");
    }
}
