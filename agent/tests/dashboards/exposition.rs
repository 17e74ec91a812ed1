//! Text of `/metrics`, read into families and series, added up and written again.
//!
//! Strict where the agent has to be: a sample outside its family, a repeated series or a missing `# EOF` fails.

use std::collections::{BTreeMap, BTreeSet};

/// One family.
#[derive(Clone, Debug, Default)]
pub struct Family {
    pub kind: String,
    pub help: String,
    pub samples: Vec<Sample>,
}

/// One sample. `key` is its name with its labels, as written.
#[derive(Clone, Debug)]
pub struct Sample {
    pub key: String,
    pub value: f64,
    /// What stands behind ` # `.
    pub exemplar: Option<String>,
}

/// A whole exposition, by family.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    pub families: BTreeMap<String, Family>,
}

impl Exposition {
    /// Reads OpenMetrics text.
    pub fn parse(text: &str) -> Exposition {
        assert!(text.ends_with("# EOF\n"), "no end");
        let mut exposition = Exposition::default();
        let mut current = String::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (what, name) = (words.next().unwrap(), words.next().unwrap());
                current = name.to_owned();
                let family = exposition.families.entry(current.clone()).or_default();
                let text = words.next().unwrap_or_default().to_owned();
                match what {
                    "TYPE" => family.kind = text,
                    "HELP" => family.help = text,
                    _ => {}
                }
                continue;
            }
            let (sample, exemplar) = match line.split_once(" # ") {
                Some((sample, exemplar)) => (sample, Some(exemplar.to_owned())),
                None => (line, None),
            };
            let (key, value) = sample.rsplit_once(' ').unwrap();
            assert!(key.starts_with(&current), "{key} stands in the family {current}");
            let family = exposition.families.get_mut(&current).unwrap();
            assert!(family.samples.iter().all(|other| other.key != key), "{key} comes twice");
            family.samples.push(Sample {
                key: key.to_owned(),
                value: value.parse().unwrap(),
                exemplar,
            });
        }
        exposition
    }

    /// Adds `other`, taken `times` times. Gauges and infos are no sums: the larger stays.
    pub fn add(&mut self, other: &Exposition, times: f64) {
        for (name, family) in &other.families {
            let sum = self.families.entry(name.clone()).or_default();
            sum.kind.clone_from(&family.kind);
            sum.help.clone_from(&family.help);
            let adds = matches!(family.kind.as_str(), "counter" | "histogram");
            for sample in &family.samples {
                let value = if adds { sample.value * times } else { sample.value };
                match sum.samples.iter_mut().find(|old| old.key == sample.key) {
                    Some(old) if adds => old.value += value,
                    Some(old) => old.value = old.value.max(value),
                    None => sum.samples.push(Sample {
                        value,
                        ..sample.clone()
                    }),
                }
            }
        }
    }

    /// Writes it again.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.families {
            text.push_str(&format!(
                "# HELP {name} {}\n# TYPE {name} {}\n",
                family.help, family.kind
            ));
            for sample in &family.samples {
                text.push_str(&format!("{} {}", sample.key, sample.value));
                if let Some(exemplar) = &sample.exemplar {
                    text.push_str(&format!(" # {exemplar}"));
                }
                text.push('\n');
            }
        }
        text + "# EOF\n"
    }

    /// Names of series, without their labels, and the values that each label has in them.
    pub fn series(&self) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
        let mut series: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (family, content) in &self.families {
            for suffix in suffixes(&content.kind) {
                series.entry(format!("{family}{suffix}")).or_default();
            }
            for sample in &content.samples {
                let name = sample.key.split('{').next().unwrap();
                let labels = series.entry(name.to_owned()).or_default();
                for (label, value) in labels_of(&sample.key) {
                    labels.entry(label).or_default().insert(value);
                }
            }
        }
        series
    }
}

/// What a family of a kind is stored as.
fn suffixes(kind: &str) -> &'static [&'static str] {
    match kind {
        "counter" => &["_total"],
        "histogram" => &["_bucket", "_count", "_sum"],
        "info" => &["_info"],
        _ => &[""],
    }
}

fn labels_of(key: &str) -> Vec<(String, String)> {
    let named = super::promql::names(key);
    let matchers = named.selectors.into_iter().flat_map(|selector| selector.matchers);
    matchers.map(|matcher| (matcher.label, matcher.value)).collect()
}

#[test]
fn what_is_read_is_written_and_added_up() {
    let text = "# HELP a Some.\n# TYPE a counter\na_total{x=\"1\"} 2 # {trace_id=\"7\"} 1.0\n# HELP g Now.\n\
                # TYPE g gauge\ng 5\n# EOF\n";
    let one = Exposition::parse(text);
    assert_eq!(one.text(), text);
    let mut sum = one.clone();
    sum.add(&one, 3.0);
    assert_eq!(sum.families["a"].samples[0].value, 8.0);
    assert_eq!(sum.families["g"].samples[0].value, 5.0);
    assert_eq!(sum.series()["a_total"]["x"].first().unwrap(), "1");
}
