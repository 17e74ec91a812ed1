#!/usr/bin/env bash
# Builds the fuzz targets of agent/fuzz with stable Rust and runs each until it has taken a minute of a processor, as many at a time as there
# are processors: however little of them is left for it, each target tries as much. The last line counts the targets.
# Usage: scripts/fuzz.sh [--build | TARGET..]. --build runs none. FUZZ_SECONDS: seconds of a processor for each. FUZZ_AT_ONCE: how many run
# at a time.
# libFuzzer needs coverage counters in the code, which LLVM's pass `sancov-module` adds: rustc's stable -Cpasses runs it, with
# the options that cargo-fuzz gives it. There is no AddressSanitizer, which needs nightly Rust: panics, failed asserts,
# overflows, timeouts and too much memory are what is found. What was found in earlier runs is tried first.
# Inputs that add coverage stay in the cache (scripts/places.sh); one that crashes is printed and kept in agent/fuzz/artifacts.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin
. scripts/places.sh

build=false
if [ "${1:-}" = --build ]; then
    build=true
    shift
fi
seconds=${FUZZ_SECONDS:-60}
# What one input may take of a processor.
input_seconds=20
at_once=${FUZZ_AT_ONCE:-$(nproc)}
host=$(rustc -vV | sed -n 's/^host: //p')
built=$(target_place)/fuzz
corpus=$(cache_place)/corpus
artifacts=$PWD/agent/fuzz/artifacts
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd agent/fuzz/fuzz_targets && ls -- *.rs | sed 's/\.rs$//')
if ! command -v c++ > /dev/null 2>&1; then
    printf 'SKIPPED fuzz::%s: libFuzzer needs a C++ compiler (apt install g++)\n' "${targets[@]}"
    echo "0 passed, 0 failed, ${#targets[@]} skipped"
    exit 0
fi

# The same versions of everything as the agent's. Cargo adds libFuzzer's, so a copy is made only when the agent's change.
mkdir -p "$built"
if [ ! -e agent/fuzz/Cargo.lock ] || ! cmp --silent Cargo.lock "$built/Cargo.lock"; then
    cp Cargo.lock agent/fuzz/Cargo.lock
    cp Cargo.lock "$built/Cargo.lock"
fi
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
begin=$SECONDS
# With --target, the flags are not for build scripts and macros, which are linked without libFuzzer.
if ! CARGO_TARGET_DIR=$built RUSTFLAGS=$flags cargo build --quiet --release --target "$host" \
    --manifest-path agent/fuzz/Cargo.toml --bins; then
    echo "error: the fuzz targets do not build"
    echo "0 passed, ${#targets[@]} failed, 0 skipped"
    exit 1
fi
echo "built in $((SECONDS - begin)) s"
! $build || exit 0

# seed TARGET: files to begin with.
seed() {
    local into=$corpus/$1 file
    mkdir -p "$into"
    case $1 in
    recording)
        for file in agent/recordings/*/events.jsonl; do
            head -c 24000 "$file" > "$into/$(basename "$(dirname "$file")")"
        done
        ;;
    etl | etl_replay)
        for file in agent/etw/samples/*.etl; do
            head -c 131072 "$file" > "$into/$(basename "$file")"
        done
        for file in agent/etw/samples/*.etl.gz; do
            gzip -dc "$file" | head -c 131072 > "$into/$(basename "$file" .gz)"
        done
        ;;
    cni_conf)
        git ls-files -- '*.conflist' '*.conf' | while read -r file; do cp "$file" "$into/$(basename "$file")"; done
        printf '{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge","ipam":{"type":"host-local"},"capabilities":{"portMappings":true},"dns":{"nameservers":["1.1.1.1"]}},{"type":"portmap"}]}' > "$into/list"
        printf '{"cniVersions":["1.1.0"],"NAME":"a","Type":"flannel","delegate":{"type":"bridge"},"disableCheck":"true"}' > "$into/single"
        ;;
    http)
        for file in / /metrics /healthz /readyz /api/traces '/api/traces?limit=3&failed=true' /api/network /api/stream; do
            printf 'GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n' "$file" > "$into/$(printf %s "$file" | tr -c 'a-z\n' _)"
        done
        printf 'POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n' > "$into/chunked"
        printf 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' > "$into/http2"
        ;;
    dns)
        # Packets of the target's own form: a query and its answer by UDP, both again by TCP, in two parts.
        python3 - "$into" << 'PYTHON'
import pathlib
import sys

name = b"\x01a\x04test\x00\x00\x01\x00\x01"
query = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + name
answer = b"\x00\x07\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" + name + b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x09\x00\x04\x0a\x00\x00\x01"
packet = lambda kind, odd, payload: bytes([kind, odd, 0, len(payload), 9]) + payload
into = pathlib.Path(sys.argv[1])
(into / "udp").write_bytes(packet(8, 0, query) + packet(12, 0, answer))
(into / "tcp").write_bytes(packet(0, 1, query) + packet(4, 1, answer) + packet(0x10, 0, b"") + packet(0x14, 0, b""))
framed = len(answer).to_bytes(2, "big") + answer
(into / "parts").write_bytes(packet(0, 1, query) + packet(4, 0, framed[:9]) + packet(4, 0, framed[9:]))
(into / "empty").write_bytes(packet(8, 0, query[:4] + b"\0\0" + query[6:12]))
(into / "dso").write_bytes(packet(8, 0, b"\x00\x07\x30\x00" + b"\0" * 8 + b"\x00\x01\x00\x08" + b"\0" * 8))
PYTHON
        ;;
    *) printf '\0' > "$into/zero" ;;
    esac
}

# taken PID: hundredths of a second that a process has had of processors (proc_pid_stat(5), utime and stime); fails when it has ended.
taken() {
    local stat
    stat=$(cat "/proc/$1/stat" 2> /dev/null) || return
    # Behind the name, which may have anything in it.
    read -ra stat <<< "${stat##*) }"
    [ "${stat[0]}" != Z ] && echo $((stat[11] + stat[12]))
}

# slow TARGET: whether the inputs that took long by the clock take as long of a processor; removes those that do not.
slow() {
    local target=$1 file user system found=1
    for file in "$artifacts/$target-slow-unit-"*; do
        [ -e "$file" ] || continue
        read -r user system < <(TIMEFORMAT='%0U %0S'; { time "$built/$host/release/$target" "$file" > /dev/null 2>&1; } 2>&1)
        if [ $((user + system)) -ge "$input_seconds" ]; then
            echo "$file takes $((user + system)) s of a processor"
            found=0
        else
            rm -f "$file"
        fi
    done
    return "$found"
}

# run TARGET: prints one line, and the log where it failed.
# libFuzzer's own limits are of the clock (-timeout, -max_total_time), which goes on where others have the processors: in such a moment an
# input of 30 bytes took 20 s. So what counts is what the process has had of a processor.
run() {
    local target=$1 log status pid ticks limit
    log=$(mktemp)
    mkdir -p "$artifacts"
    nice -n 15 "$built/$host/release/$target" "$corpus/$target" -seed=1 -timeout=0 -report_slow_units="$input_seconds" \
        -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 -artifact_prefix="$artifacts/$target-" > "$log" 2>&1 &
    pid=$!
    limit=$((seconds * 100))
    while ticks=$(taken "$pid"); do
        if [ "$ticks" -ge $(((seconds + input_seconds) * 100)) ]; then
            # It writes the input that it is at, unless it waits for a lock that it has itself.
            kill -ABRT "$pid"
            sleep 20
            kill -KILL "$pid" 2> /dev/null
            echo "one input took more than $input_seconds s of a processor" >> "$log"
            break
        elif [ "$ticks" -ge "$limit" ]; then
            # It ends with its figures behind the input that it is at (-handle_usr1).
            kill -USR1 "$pid"
            limit=$(((seconds + input_seconds) * 100))
        fi
        sleep 0.5
    done
    wait "$pid"
    status=$?
    if [ "$status" -eq 0 ] && slow "$target" >> "$log"; then
        status=1
    fi
    if [ "$status" -eq 0 ]; then
        printf '%-12s %9s inputs, %6s counters covered, %5s MB\n' "$target" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
            "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)" \
            "$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")"
        rm -f "$log"
        return 0
    fi
    echo "$target: FAILED"
    tail -n 60 "$log"
    echo "$target ended with $status; above 128 it is a signal's number more"
    rm -f "$log"
    return 1
}

for target in "${targets[@]}"; do
    seed "$target"
done
export -f run taken slow
export built host corpus artifacts seconds input_seconds
begin=$SECONDS
ran=$(mktemp -d)
trap 'rm -rf "$ran"' EXIT
export ran
printf '%s\n' "${targets[@]}" | xargs -P "$at_once" -I '{}' bash -c 'run "$1" && touch "$ran/$1"' run '{}'
passed=$(find "$ran" -type f | wc -l)
echo "${#targets[@]} targets, $seconds s of a processor each, $((SECONDS - begin)) s"
echo "$passed passed, $((${#targets[@]} - passed)) failed, 0 skipped"
[ "$passed" -eq ${#targets[@]} ]
