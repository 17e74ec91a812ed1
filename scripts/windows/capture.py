#!/usr/bin/env python3
"""Runs pods on the node that node.py made, while sandglass records it, and keeps everything that was seen.

Usage: capture.py SANDGLASS EVIDENCE record     an .etl file, a live agent beside it, and three pods with crictl's clock
       capture.py SANDGLASS EVIDENCE replay     what the .etl file replays to, its anonymized recording, and tracerpt's XML
       capture.py SANDGLASS EVIDENCE TOOL       the commands that docs/windows.md has for logman, pktmon, netsh or wpr, with one
                                                pod, and what their file replays to
Used by the workflow windows.yml. A command that fails is kept with its output and does not end the run: judge.py judges.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

CRICTL = pathlib.Path(os.environ.get("ProgramFiles", "/tmp")) / "containerd" / "bin" / "crictl.exe"
CRICTL = os.environ.get("CRICTL", str(CRICTL))
ENDPOINT = "npipe:////./pipe/containerd-containerd"
PAUSE = "registry.k8s.io/pause:3.10.2"  # what containerd 2.4 uses
# Name, runtime handler (node.py), and what judge.py expects of each pod: plugins, failure, and a command with its least
# duration in milliseconds.
PODS = [
    ("good", None, ["nat"], False, None),
    ("refused", "fails", ["fails"], True, None),
    ("slow", "sleeps", ["sleeps", "nat"], False, ("powershell", 3000)),
]
ANSWERS = {
    "metrics.prom": "http://127.0.0.1:9477/metrics",
    "sandboxes.json": "http://127.0.0.1:9478/api/v1/sandboxes",
    "health.json": "http://127.0.0.1:9478/api/v1/health",
}
RECORD_SECONDS = 150
# Spans of a sandbox are complete some seconds after its last event.
SETTLE_SECONDS = 15


def run(evidence, name, *command, timeout=300):
    """Runs a command; its output is kept in the file `name`. Returns its exit code."""
    print("+", *command, flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False)
        code, text = done.returncode, done.stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        code, text = 127, str(problem).encode()
    with open(evidence / name, "ab") as file:
        file.write(f"+ {' '.join(command)}\n".encode() + text + f"\nexit code {code}\n".encode())
    return code


def crictl(evidence, *arguments):
    return run(evidence, "crictl.log", CRICTL, "--runtime-endpoint", ENDPOINT, "--timeout", "120s", *arguments)


def pod(evidence, name, handler):
    """Makes and removes a pod; returns when its creation began and ended, and crictl's exit code."""
    sandbox = {"metadata": {"name": name, "namespace": "elsewhere", "uid": f"uid-{name}", "attempt": 0}, "windows": {}}
    file = evidence / f"pod-{name}.json"
    file.write_text(json.dumps(sandbox))
    begin = time.time_ns()
    code = crictl(evidence, "runp", *(["--runtime", handler] if handler else []), str(file))
    end = time.time_ns()
    crictl(evidence, "pods", "--name", name, "-v")
    remove(evidence, name)
    return begin, end, code


def remove(evidence, name):
    listed = subprocess.run(
        [CRICTL, "--runtime-endpoint", ENDPOINT, "pods", "--name", name, "-q"], stdout=subprocess.PIPE, text=True, check=False
    )
    for sandbox in listed.stdout.split():
        crictl(evidence, "stopp", sandbox)
        crictl(evidence, "rmp", sandbox)


def record(sandglass, evidence):
    crictl(evidence, "version")
    crictl(evidence, "pull", PAUSE)
    with open(evidence / "record.log", "wb") as log, open(evidence / "run.log", "wb") as live_log:
        recorder = subprocess.Popen(
            [sandglass, "record", str(evidence / "node.etl"), "--seconds", str(RECORD_SECONDS)], stdout=log, stderr=log
        )
        live = subprocess.Popen(
            [sandglass, "run", "--cri-endpoint", ENDPOINT, "--record", str(evidence / "live.jsonl")],
            stdout=live_log, stderr=live_log,
        )
        until_ready()
        clock = []
        for name, handler, plugins, fails, command in PODS:
            begin, end, code = pod(evidence, name, handler)
            clock.append({
                "pod": name, "begin_ns": begin, "end_ns": end, "exit": code, "plugins": plugins, "fails": fails, "command": command,
            })
            (evidence / "clock.json").write_text(json.dumps(clock, indent=1))
        time.sleep(SETTLE_SECONDS)
        for name, url in ANSWERS.items():
            try:
                (evidence / name).write_bytes(urllib.request.urlopen(url, timeout=20).read())
            except OSError as problem:
                print(f"{url}: {problem}")
        # Killed: its ETW sessions stay behind, and the next agent must take them over (the step `service`).
        live.kill()
        print("the live agent ended with", live.wait())
        print("the recorder ended with", recorder.wait(timeout=RECORD_SECONDS + 120))


def until_ready():
    for _ in range(60):
        try:
            urllib.request.urlopen("http://127.0.0.1:9477/readyz", timeout=5)
            return
        except OSError:
            time.sleep(1)
    print("the live agent is not ready")


def replay(sandglass, evidence, etl="node.etl"):
    base = etl.removesuffix(".etl")
    for what in ["spans", "tree", "metrics"]:
        with open(evidence / f"{base}.{what}", "wb") as file, open(evidence / f"{base}.replay.log", "ab") as log:
            subprocess.run([sandglass, "replay", "--print", what, str(evidence / etl)], stdout=file, stderr=log, check=False)
    anonymized = str(evidence / f"{base}.anonymized.jsonl")
    run(evidence, "anonymize.log", sandglass, "replay", "--print", "nothing", "--record", anonymized, "--anonymize", str(evidence / etl))
    xml = str(evidence / f"{base}.xml")
    run(evidence, "tracerpt.log", "tracerpt", str(evidence / etl), "-o", xml, "-of", "XML", "-lr", "-y", timeout=900)


def documented(tool):
    """The commands of docs/windows.md that begin with `tool`: those that start, and the last, which ends."""
    text = (pathlib.Path(__file__).parents[2] / "docs" / "windows.md").read_text()
    lines = [line.strip() for line in text.split("## What to expect")[0].splitlines() if line.startswith(f"    {tool} ")]
    return lines[:-1], lines[-1]


def by_tool(sandglass, evidence, tool):
    """As a user types them: by cmd.exe, in docs/, where the profile lies."""
    etl = evidence / f"{tool}.etl"
    start, stop = documented(tool)
    for line in [*start, None, stop]:
        if line is None:
            pod(evidence, tool, None)
            continue
        line = line.replace(r"C:\node.etl", str(etl))
        print("+", line, flush=True)
        subprocess.run(line, shell=True, cwd=pathlib.Path(__file__).parents[2] / "docs", check=False)
    replay(sandglass, evidence, etl.name)
    spans = (evidence / f"{tool}.spans").read_text()
    seen = f'"name":"{tool}"' in spans
    print(f"{tool}: the pod is {'' if seen else 'not '}in the replay")
    sys.exit(0 if seen else 1)


def main():
    sandglass, evidence, what = sys.argv[1:]
    evidence = pathlib.Path(evidence).absolute()
    evidence.mkdir(parents=True, exist_ok=True)
    if what in ("record", "replay"):
        {"record": record, "replay": replay}[what](sandglass, evidence)
    else:
        by_tool(sandglass, evidence, what)


if __name__ == "__main__":
    main()
