//! Figures, their budgets, and both as a table: for the terminal and for a results file.
//!
//! Used by every part. Does not: measure, or define budgets (the parts do, BUDGETS.md explains them).

use std::fmt::Write as _;

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Per second.
    PerSecond,
    /// Nanoseconds.
    Nanoseconds,
    /// Milliseconds.
    Milliseconds,
    /// Bytes.
    Bytes,
    /// Hundredths.
    Percent,
    /// A plain number.
    Count,
}

/// One measured number.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    value: f64,
    unit: Unit,
    budget: Option<Budget>,
    /// Confidence interval of the true value.
    interval: Option<(f64, f64)>,
    /// Its distribution, or other context.
    remark: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Budget {
    AtMost(f64),
    AtLeast(f64),
}

impl Figure {
    /// A number without a budget.
    pub fn new(name: impl Into<String>, value: f64, unit: Unit) -> Figure {
        Figure {
            name: name.into(),
            value,
            unit,
            budget: None,
            interval: None,
            remark: String::new(),
        }
    }

    /// Sets the budget: at most `most`.
    pub fn at_most(mut self, most: f64) -> Figure {
        self.budget = Some(Budget::AtMost(most));
        self
    }

    /// Sets the budget: at least `least`.
    pub fn at_least(mut self, least: f64) -> Figure {
        self.budget = Some(Budget::AtLeast(least));
        self
    }

    /// Sets the remark.
    pub fn remark(mut self, remark: impl Into<String>) -> Figure {
        self.remark = remark.into();
        self
    }

    /// Sets the confidence interval: the budget counts as kept or missed only if both ends agree.
    pub fn between(mut self, (low, high): (f64, f64)) -> Figure {
        self.interval = Some((low, high));
        self
    }

    /// Whether it misses its budget with confidence.
    pub fn is_over(&self) -> bool {
        self.verdict() == "OVER"
    }

    fn verdict(&self) -> &'static str {
        let (low, high) = self.interval.unwrap_or((self.value, self.value));
        let keeps = |value: f64| match self.budget {
            Some(Budget::AtMost(most)) => value <= most,
            Some(Budget::AtLeast(least)) => value >= least,
            None => true,
        };
        match (self.budget, keeps(low), keeps(high)) {
            (None, ..) => "",
            (Some(_), true, true) => "ok",
            (Some(_), false, false) => "OVER",
            (Some(_), ..) => "unsure",
        }
    }

    fn columns(&self) -> [String; 5] {
        let budget = match self.budget {
            Some(Budget::AtMost(most)) => format!("<= {}", text(most, self.unit)),
            Some(Budget::AtLeast(least)) => format!(">= {}", text(least, self.unit)),
            None => String::new(),
        };
        [
            self.name.clone(),
            budget,
            text(self.value, self.unit),
            self.verdict().to_owned(),
            self.remark.clone(),
        ]
    }
}

/// Result of one part.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was measured.
    Figures(Vec<Figure>),
    /// It cannot be measured here.
    Skipped(String),
    /// It failed.
    Failed(String),
}

/// All figures of the parts as a Markdown table that is aligned for terminals; then the skipped and failed parts.
pub fn table(parts: &[(&'static str, Outcome)]) -> String {
    let mut rows = vec![["part", "figure", "budget", "measured", "", "remark"].map(str::to_owned)];
    let mut below = String::new();
    for (part, outcome) in parts {
        match outcome {
            Outcome::Figures(figures) => rows.extend(figures.iter().map(|figure| {
                let [name, budget, measured, verdict, remark] = figure.columns();
                [(*part).to_owned(), name, budget, measured, verdict, remark]
            })),
            Outcome::Skipped(reason) => below.push_str(&format!("SKIPPED {part}: {reason}\n")),
            Outcome::Failed(reason) => below.push_str(&format!("FAILED {part}: {reason}\n")),
        }
    }
    let mut table = String::new();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for (index, row) in rows.iter().enumerate() {
        // Numbers are aligned right.
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(column, (cell, width))| match column {
                2 | 3 => format!(" {cell:>width$} "),
                _ => format!(" {cell:<width$} "),
            })
            .collect();
        // Writing to a String cannot fail.
        let _ = writeln!(table, "|{}|", cells.join("|"));
        if index == 0 {
            let rules = widths.map(|width| "-".repeat(width + 2));
            let _ = writeln!(table, "|{}|", rules.join("|"));
        }
    }
    if !below.is_empty() {
        let _ = write!(table, "\n{below}");
    }
    table
}

fn text(value: f64, unit: Unit) -> String {
    match unit {
        Unit::PerSecond => format!("{}/s", grouped(value)),
        Unit::Nanoseconds => format!("{} ns", grouped(value)),
        Unit::Milliseconds => format!("{value:.1} ms"),
        Unit::Bytes if value.abs() >= 1e6 => format!("{:.1} MB", value / 1e6),
        Unit::Bytes => format!("{} B", grouped(value)),
        Unit::Percent => format!("{value:.3} %"),
        Unit::Count if value.fract() == 0.0 => grouped(value),
        Unit::Count => format!("{value:.2}"),
    }
}

/// Whole number with commas between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// The quantile `share` (0 to 1) of `values`, interpolated linearly; NaN for none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// The median.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_the_budget() {
        let figure = |value| Figure::new("x", value, Unit::Count);
        assert!(!figure(5.0).at_most(5.0).is_over());
        assert!(figure(5.1).at_most(5.0).is_over());
        assert!(figure(4.9).at_least(5.0).is_over());
        assert!(!figure(5.0).at_least(5.0).is_over());
        assert!(figure(f64::NAN).at_least(5.0).is_over());
        assert!(!figure(f64::NAN).is_over());
        assert_eq!(figure(2.0).at_most(1.0).between((0.5, 3.0)).verdict(), "unsure");
        assert_eq!(figure(2.0).at_most(1.0).between((1.5, 3.0)).verdict(), "OVER");
        assert_eq!(figure(0.5).at_most(1.0).between((-1.0, 0.9)).verdict(), "ok");
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[0.0, 10.0], 0.25), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn table_shows_figures_and_names_what_is_missing() {
        let table = table(&[
            (
                "speed",
                Outcome::Figures(vec![Figure::new("events", 1_234_567.0, Unit::PerSecond).at_least(1e6)]),
            ),
            ("rig", Outcome::Skipped("not root".into())),
        ]);
        assert!(
            table.contains("| speed | events | >= 1,000,000/s | 1,234,567/s | ok |"),
            "{table}"
        );
        assert!(table.ends_with("SKIPPED rig: not root\n"), "{table}");
    }
}
