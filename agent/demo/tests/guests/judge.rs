//! Compares the console of a machine with what `guests/inside.rs` must print on it.

use anyhow::{Context as _, Result, ensure};

use crate::console::{PROBES, Ran, Verdict, booted, lines, start};
use crate::machines::Machine;

/// Everything that must hold of the machine. What the pods came to is judged there; here, that it was.
pub fn judge(machine: &Machine, console: &str) -> Result<Verdict> {
    let (release, date) = booted(machine, console)?;
    ensure!(
        console.contains("\nthe test ended with 0\n") && console.contains("test result: ok. 1 passed"),
        "the test failed in the machine"
    );
    ensure!(
        console.contains("\nsnapshotter: overlayfs\n"),
        "containerd does not use overlayfs"
    );
    let verdicts: Vec<&str> = lines(console, "pod ").collect();
    ensure!(
        verdicts == ["shop/web-0: traced", "shop/billing-0: traced"],
        "the pods: {verdicts:?}"
    );
    let rung = |(probe, hooks): (&str, &[&str])| {
        let hook = lines(console, "probe ").find_map(|line| line.strip_prefix(&format!("{probe}: ")));
        let hook = hook.filter(|hook| hooks.contains(hook));
        let hook = hook.with_context(|| format!("the hook of probe {probe} is not one of {hooks:?}"))?;
        Ok((probe.to_owned(), hook.to_owned()))
    };
    let rungs = PROBES.into_iter().map(rung).collect::<Result<_>>()?;
    Ok(Verdict {
        release,
        date,
        scenes: vec![Ran {
            rungs,
            start: Some(start(console)?),
            waits: Vec::new(),
        }],
        tracked: true,
    })
}
