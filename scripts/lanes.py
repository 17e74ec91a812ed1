#!/usr/bin/env python3
"""Runs the workspace's test binaries, those that mostly wait beside those that compute, and prints where the time went.

Usage: scripts/lanes.py [ARGUMENT..], the arguments being those of `cargo test`: options, a filter for names, and behind `--`
options for the test binaries. Builds with cargo first. Used by scripts/test.sh.

A lane runs its binaries one after the other. The lane `machine` holds the tests that observe the whole node with probes of
their own, or measure: two of them at once would see each other's processes. They wait most of their time, so the other lanes
run beside them: as many as there are processors less one, and with a lower priority (nice), so that they do not take the
processor from what is being observed. Where the lane can have a cgroup of its own, the kernel counts there what its tests
waited, and nothing else (SANDGLASS_TESTS_CGROUP; agent/lab/src/pressure.rs).
It begins with the tests that watch how threads wait. Those that look at nothing but packets in namespaces of their own run
beside these in a lane of lower priority, and what comes after them waits for its end. Then the file SANDGLASS_WAITS_WATCHED is
made, if that names one: `.ci/run` has others wait for it.
One lane more is of those that wait for QEMU. A lane that has run its own binaries takes over those of the other lanes, but for
`machine`. A binary's output is printed when it ends, so that no two mix.
Exits with 0 where every binary did. Does not: count or repeat tests, or hide any (scripts/count.sh counts).
"""

import atexit
import glob
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

# Tests that attach probes to the whole node, or start a node of their own.
MACHINE = {
    "sandglass-demo": {"end_to_end", "observability", "runtime", "sandglass_demo"},
    "sandglass": {"connect_probe", "conntrack", "exec_probe", "journal", "kills", "noisy", "reload"},
}
# Of these, one test at a time: each watches how threads wait, which is what the others beside it make them do.
SERIAL = {"exec_probe"}
# Tests that make packets in namespaces of their own, and look at nothing else. They judge no durations by another clock than the kernel's.
# Some of these packets are floods, which every agent on the machine sees.
PACKETS = {"dns_path", "dns_peers", "dns_probe"}
# The variable with the name of a file.
WAITS_WATCHED = "SANDGLASS_WAITS_WATCHED"
# Tests that mostly wait for QEMU. They are the longest lane.
GUESTS = {"guests", "kernels"}
# Started first: the longest of the others, so that none of them is left alone at the end.
LONG = ["windows", "page", "dashboards", "sandglass"]
# Options of `cargo test` that take a value: what stands behind another is a filter for names.
VALUED = {
    "-p", "--package", "--exclude", "--test", "--bin", "--bench", "--example", "-F", "--features", "--profile", "--target",
    "--target-dir", "-j", "--jobs", "--manifest-path", "--color", "-Z", "--config",
}
# Options that select targets: with one of them no documentation is tested.
SELECTING = {"--lib", "--bins", "--bin", "--test", "--tests", "--bench", "--benches", "--example", "--examples", "--all-targets"}


class Run:
    """One test binary, or the documentation's tests."""

    def __init__(self, package, name, command, folder):
        self.package, self.name, self.command, self.folder = package, name, command, folder
        self.status = None
        self.wall = self.cpu = 0.0

    def title(self):
        return f"{self.package} {self.name}"

    def run(self):
        begin = time.monotonic()
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                self.command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            RUNNING[child.pid] = child
            _, status, usage = os.wait4(child.pid, 0)
            RUNNING.pop(child.pid, None)
            child.returncode = self.status = os.waitstatus_to_exitcode(status)
            self.wall = time.monotonic() - begin
            self.cpu = usage.ru_utime + usage.ru_stime
            output.seek(0)
            text = output.read().decode(errors="replace")
        with PRINTING:
            print(f"\n     Running {self.title()}\n{text}", end="")
            if self.status != 0:
                print(f"error: {self.title()} ended with {self.status}")
            print(f"     {self.title()}: {self.wall:.1f} s, {self.cpu:.1f} s of processor time", flush=True)


RUNNING = {}
PRINTING = threading.Lock()


def split(arguments):
    """Options for cargo, a filter for names or none, and options for the test binaries."""
    for_tests = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, for_tests = arguments[:at], arguments[at + 1 :]
    options, names, value = [], [], False
    for argument in arguments:
        if value or argument.startswith("-"):
            options.append(argument)
        else:
            names.append(argument)
        value = not value and argument in VALUED
    return options, names, for_tests


def build(options):
    """Builds, and gives the test binaries."""
    command = ["cargo", "test", "--locked", "--no-run", "--message-format=json-render-diagnostics", *options]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        sys.exit(built.returncode)
    runs = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable") or not message["profile"]["test"]:
            continue
        target, manifest = message["target"], message["manifest_path"]
        kind = target["kind"][0]
        folder = os.path.dirname(manifest)
        package = package_of(manifest)
        name = target["name"] if kind == "test" else f"{target['name']} ({kind})"
        run = Run(package, name, [message["executable"]], folder)
        run.key = target["name"]
        run.machine = run.key in MACHINE.get(package, ()) and kind in ("test", "lib")
        runs.append(run)
    return runs


def package_of(manifest):
    with open(manifest, encoding="utf-8") as text:
        for line in text:
            if line.startswith("name = "):
                return line.split('"')[1]
    return os.path.basename(os.path.dirname(manifest))


def own_cgroup():
    """A new cgroup directly below the top of version 2, or None: without root, or where it is not mounted or not writable."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        tops = [fields[1] for fields in map(str.split, mounts) if fields[2] == "cgroup2"]
    for top in tops[:1]:
        for left in glob.glob(os.path.join(top, "sandglass-tests-*")):
            # Of a run that was killed.
            if not os.path.exists(f"/proc/{left.rsplit('-', 1)[1]}"):
                leave(left)
        directory = os.path.join(top, f"sandglass-tests-{os.getpid()}")
        try:
            os.mkdir(directory)
        except OSError:
            return None
        if os.access(os.path.join(directory, "cpu.pressure"), os.R_OK):
            return directory
        os.rmdir(directory)
    return None


def leave(cgroup):
    try:
        os.rmdir(cgroup)
    except OSError as error:
        print(f"error: {cgroup} stays: {error}")


def lane(*queues):
    for runs in queues:
        while True:
            try:
                run = runs.pop(0)
            except IndexError:
                break
            run.run()


def machine_lane(machine, packets, *queues):
    beside = threading.Thread(target=lane, args=(packets,), daemon=True)
    beside.start()
    lane([run for run in machine if run.key in SERIAL])
    beside.join()
    if WAITS_WATCHED in os.environ:
        with open(os.environ[WAITS_WATCHED], "w", encoding="utf-8"):
            pass
    lane([run for run in machine if run.key not in SERIAL], *queues)


def main():
    options, names, for_tests = split(sys.argv[1:])
    if not any(option in ("-p", "--package", "--workspace", "--all") for option in options):
        options.insert(0, "--workspace")
    begin = time.monotonic()
    runs = build(options)
    print(f"     built in {time.monotonic() - begin:.1f} s", flush=True)
    for run in runs:
        # --show-output: without it libtest swallows what passing tests print, SKIPPED lines included.
        is_serial = run.name in SERIAL and not any(option.startswith("--test-threads") for option in for_tests)
        run.command += [*names, "--show-output", *(["--test-threads=1"] if is_serial else []), *for_tests]
    machine = [run for run in runs if run.machine]
    cgroup = own_cgroup() if machine else None
    if cgroup:
        atexit.register(leave, cgroup)
        for run in machine:
            # The shell enters it and becomes the test.
            enter = 'echo $$ > "$0/cgroup.procs" && exec env SANDGLASS_TESTS_CGROUP="$0" "$@"'
            run.command = ["sh", "-c", enter, cgroup, *run.command]
    guests = [run for run in runs if run.key in GUESTS]
    packets = [run for run in runs if run.key in PACKETS]
    others = [run for run in runs if not run.machine and run.key not in GUESTS | PACKETS]
    for run in guests + packets + others:
        run.command = ["nice", "-n", "5", *run.command]
    others.sort(key=lambda run: LONG.index(run.key) if run.key in LONG else len(LONG))
    if not any(option in SELECTING for option in options):
        documentation = ["cargo", "test", "--locked", "--doc", *options, *names, "--", "--show-output", *for_tests]
        others.append(Run("workspace", "documentation", documentation, os.getcwd()))
        runs.append(others[-1])
    lanes = [threading.Thread(target=machine_lane, args=(machine, packets, others, guests), daemon=True)]
    lanes.append(threading.Thread(target=lane, args=(guests, others), daemon=True))
    for _ in range(max(1, (os.cpu_count() or 1) - 1)):
        lanes.append(threading.Thread(target=lane, args=(others, guests), daemon=True))
    for thread in lanes:
        thread.start()
    try:
        for thread in lanes:
            thread.join()
    except KeyboardInterrupt:
        for child in list(RUNNING.values()):
            child.terminate()
        sys.exit(130)
    print("\nwhere the time went, by the clock and of processors:")
    for run in sorted(runs, key=lambda run: -run.wall)[:20]:
        print(f"  {run.wall:7.1f} s  {run.cpu:7.1f} s  {run.title()}")
    rest = sorted(runs, key=lambda run: -run.wall)[20:]
    print(f"  {sum(run.wall for run in rest):7.1f} s  {sum(run.cpu for run in rest):7.1f} s  {len(rest)} others")
    print(f"  {time.monotonic() - begin:7.1f} s  {sum(run.cpu for run in runs):7.1f} s  all, building included by the clock")
    sys.exit(0 if all(run.status == 0 for run in runs) else 101)


if __name__ == "__main__":
    main()
