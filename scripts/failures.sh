#!/usr/bin/env bash
# Repeats, after all else, which tests failed and with which messages: a run of many minutes hides them far above.
# Usage: scripts/failures.sh LOG.., each the output of tests. Prints nothing where none failed.
set -uo pipefail
awk '
    # What libtest lists at the end of each test binary.
    /^failures:$/ { listed = 1; next }
    /^test result: / { listed = 0 }
    listed && /^    [A-Za-z0-9_:]+$/ { failed[$1] = 1 }
    # What a test returned.
    /^---- .* stdout ----$/ { name = $2; left = 0 }
    /^Error: / && name != "" && words[name] == "" { left = 16 }
    # A thread has the name of its test. The last words count: a property test panics for each attempt.
    /^thread .* panicked at / {
        split($0, part, "\047")
        name = part[2]
        words[name] = ""
        left = 16
        sub(/^.* panicked at /, "at ")
    }
    /^stack backtrace:|^note: |^---/ { left = 0 }
    left > 0 && NF { words[name] = words[name] "\n    " substr($0, 1, 500); left-- }
    END {
        for (name in failed)
            printf "%s  %s%s\n", (shown++ ? "" : "\nfailed here:\n"), name, words[name]
    }
' "$@"
