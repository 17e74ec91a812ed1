#!/usr/bin/env bash
# Counts the results in a log of tests: names what was skipped, and ends with one line: N passed, N failed, N skipped.
# Usage: scripts/count.sh LOG STATUS, the status being that of the run; fails where a test did.
# A test that cannot run prints `SKIPPED <name>: <reason>`; it counts as skipped only. Of a test that ran, a check
# that it could not make prints `NOT RUN <test>::<check>: <reason>`, and one for which the machine was too busy prints
# `NOT JUDGED` instead; each counts as one more skipped.
set -uo pipefail
log=$1
status=$2
# A line may come twice (on the terminal and among the output of its test), or behind the name of another test.
skips=$(grep -oE 'SKIPPED [A-Za-z0-9_:]+: .*' "$log" | awk '!seen[$2]++')
sum() { grep -oE "^test result: .*" "$log" | grep -oE "[0-9]+ $1" | awk '{ total += $1 } END { print total + 0 }'; }
open=$(grep -oE 'NOT (JUDGED|RUN) [A-Za-z0-9_:]+: .*' "$log" | awk '!seen[$3]++')
passed=$(sum passed)
failed=$(sum failed)
ignored=$(sum ignored)
skipped=0
if [ -n "$skips" ]; then
    skipped=$(wc -l <<< "$skips")
    printf '\nskipped here:\n%s\n' "$skips"
fi
checks=0
if [ -n "$open" ]; then
    checks=$(wc -l <<< "$open")
    printf '\nnot judged, or not run, of tests that ran:\n%s\n' "$open"
fi
scripts/failures.sh "$log"
# A crate that does not compile, or a test binary that dies, has no result line of its own.
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
    failed=1
fi
printf '%d passed, %d failed, %d skipped\n' $((passed - skipped)) "$failed" $((skipped + ignored + checks))
[ "$status" -eq 0 ] && [ "$failed" -eq 0 ]
