//! The report as text for a terminal: one line for what is well, three for what is not.
//!
//! Used by the command; `--json` prints the report as it is. The text is for people and may change, the JSON's keys and the names
//! of checks are stable. Does not: choose what is shown.

use std::fmt::Write;

use super::{Level, Report};

/// Renders the report; `color` adds ANSI colours, which carry nothing that the words do not.
#[must_use]
pub fn render(report: &Report, color: bool) -> String {
    let mut text = String::new();
    // Which agent and which kernel: the first questions about any report.
    let node = &report.node;
    let name = if node.name.is_empty() { "this node" } else { &node.name };
    let _ = writeln!(
        text,
        "sandglass {} on {name} ({} {} {})",
        node.version, node.os, node.kernel, node.machine
    );
    // A section without findings does not apply here, such as conntrack on Windows.
    for section in report.sections.iter().filter(|section| !section.findings.is_empty()) {
        let _ = writeln!(text, "\n{}", section.title);
        for finding in &section.findings {
            let _ = writeln!(text, "  {} {}", word(finding.level, color), one_line(&finding.what));
            // Only what is not well has a reason and a remedy.
            if !finding.why.is_empty() {
                let _ = writeln!(text, "       why: {}", one_line(&finding.why));
            }
            if !finding.hint.is_empty() {
                let _ = writeln!(text, "       hint: {}", one_line(&finding.hint));
            }
        }
    }
    // Worst first: the last line of a long report is the one that is on the screen.
    let counts: Vec<String> = Level::ALL
        .iter()
        .rev()
        .map(|level| format!("{} {}", report.count(*level), level.as_str()))
        .collect();
    let _ = writeln!(text, "\n{}", counts.join(", "));
    text
}

/// A level in four columns; its colour is one of the eight that every terminal has (ECMA-48, SGR 31 to 36).
fn word(level: Level, color: bool) -> String {
    let word = format!("{:<4}", level.as_str());
    if !color {
        return word;
    }
    let code = match level {
        Level::Ok => 32,
        Level::Note => 36,
        Level::Warn => 33,
        Level::Fail => 31,
    };
    format!("\x1b[{code}m{word}\x1b[0m")
}

/// A text in one line of bounded length. Texts come from files and answers: control characters would play with the terminal.
fn one_line(text: &str) -> String {
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_LINE)
        .collect();
    clean.trim().to_owned()
}

/// Characters of a line. The longest text of the agent itself has about 300; what is beyond comes from elsewhere, such as the
/// message of a condition.
const MAX_LINE: usize = 600;
