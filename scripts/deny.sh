#!/usr/bin/env bash
# Licences, bans and sources of all dependencies; advisories where their database can be reached, else named as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.20.2
if ! cargo deny --version 2>/dev/null | grep -q " $version$"; then
    echo "installing cargo-deny $version with cargo (a few minutes, once)"
    cargo install --quiet --locked "cargo-deny@$version"
fi
cargo deny --log-level warn --all-features check --hide-inclusion-graph licenses bans sources
if ! output=$(timeout 120 cargo deny --all-features check advisories 2>&1); then
    if grep -qE 'failed to fetch advisory database|failed to load advisory database|failed to clone|unable to fetch' <<<"$output"; then
        echo "SKIPPED advisories: the advisory database cannot be reached"
    else
        printf '%s\n' "$output"
        exit 1
    fi
fi
