#!/usr/bin/env python3
"""Judges a replay of a Windows node against what others know of it: crictl's clock, and tracerpt's XML of the same file.

Usage: judge.py --spans FILE.. --clock FILE [--xml FILE] [--live FILE]
  --spans  what `sandglass replay --print spans` printed
  --clock  pods as capture.py ran them: [{"pod", "begin_ns", "end_ns", "exit", "plugins", "fails", "command"}]
  --xml    what `tracerpt -of XML` made of the .etl file
  --live   the answer of /api/v1/sandboxes of an agent that ran at the same time
Prints one line a check, each with the line of LIMITATIONS.md that its failure would confirm; exits with 1 where one failed.
Used by the workflow windows.yml and by `agent/tests/workflows.rs`. Does not: need Windows.
"""

import argparse
import datetime
import json
import re
import sys
import xml.etree.ElementTree

# crictl's clock begins before the request reaches the runtime and ends after its answer; both are read on the same machine.
CRICTL_NS = 1_000_000_000
# Both read the same timestamps of one file; tracerpt may print fewer digits.
TRACERPT_NS = 1_000_000
# Class Process of the kernel logger.
PROCESS = "3d6fa8d0-fe05-11d0-9dda-00c04fd7ba7c"

FAILED = []


def check(good, what, limitation):
    print(f"{'ok    ' if good else 'FAILED'} {what}" + ("" if good else f" [LIMITATIONS: {limitation}]"))
    if not good:
        FAILED.append(what)
    return good


def traces(files):
    for file in files:
        with open(file, encoding="utf-8-sig") as lines:
            yield from (json.loads(line) for line in lines if line.startswith("{"))


def named(trace, beginning):
    return [span for span in trace["spans"] if span["name"].startswith(beginning)]


def begin(span):
    return int(span["start_unix_ns"])


def end(span):
    return int(span["end_unix_ns"])


def below(trace, parent):
    """Spans below `parent`, at any depth."""
    found, ids = [], {parent["id"]}
    # A parent stands before its children.
    for span in trace["spans"]:
        if span["parent_id"] in ids:
            ids.add(span["id"])
            found.append(span)
    return found


def judge_pod(trace, pod):
    """One pod's trace against its line of the clock."""
    name = pod["pod"]
    roots = named(trace, "sandbox.create")
    if check(bool(roots), f"{name}: has sandbox.create", "A Windows node (containerd's provider)"):
        root = roots[0]
        within = pod["begin_ns"] - CRICTL_NS <= begin(root) and end(root) <= pod["end_ns"] + CRICTL_NS
        figures = f"begins {(begin(root) - pod['begin_ns']) / 1e6:+.1f} ms, ends {(end(root) - pod['end_ns']) / 1e6:+.1f} ms"
        check(within, f"{name}: creation is within crictl's clock ({figures})", "A Windows node (clocks of sessions)")
        failed = root["status"] == "error"
        check(failed == bool(pod["fails"]), f"{name}: the creation {'fails' if pod['fails'] else 'succeeds'}", "A Windows node")
        check((pod["exit"] != 0) == bool(pod["fails"]), f"{name}: crictl's exit code {pod['exit']} agrees", "none: the pod itself")
    adds = named(trace, "cni ADD")
    check(len(adds) == 1, f"{name}: one cni ADD ({len(adds)})", "A Windows node (one system logger session)")
    for plugin in pod["plugins"]:
        spans = named(trace, f"plugin {plugin}")
        check(len(spans) == 1, f"{name}: one plugin {plugin} ({len(spans)})", "A Windows node (command lines of processes)")
    if pod["fails"] and adds:
        check(adds[0]["status"] == "error", f"{name}: the ADD failed", "A Windows node (exit codes of processes)")
    if pod["command"]:
        program, least_ms = pod["command"]
        commands = named(trace, f"command {program}")
        long = [span for span in commands if end(span) - begin(span) >= least_ms * 1_000_000]
        check(bool(long), f"{name}: a command {program} of {least_ms} ms or more", "A Windows node (processes below a plugin)")
        inside = {span["id"] for plugin in named(trace, "plugin") for span in below(trace, plugin)}
        check(all(span["id"] in inside for span in commands), f"{name}: {program} is below a plugin", "A Windows node")
    if pod["plugins"] != ["fails"]:
        check(bool(named(trace, "hns ")), f"{name}: has hns spans", "ETW events of HNS, HCS, VFP, WinNAT and TCPIP")
    if not pod["fails"]:
        check(bool(named(trace, "hcs ")), f"{name}: has hcs spans", "ETW events of HNS, HCS, VFP, WinNAT and TCPIP")
    check(not trace["incomplete"], f"{name}: no event was lost", "A Windows node (buffers of sessions)")


def nanoseconds(text):
    """Of a time as tracerpt prints it: with up to nine digits of a second and a zone, which strptime does not know."""
    match = re.fullmatch(r"(\d+-\d+-\d+T\d+:\d+:\d+)(?:\.(\d+))?(Z|[+-]\d+:\d+)?", text.strip())
    if not match:
        raise ValueError(f"not a time: {text}")
    zone = "+00:00" if match[3] in (None, "Z") else match[3]
    seconds = int(datetime.datetime.fromisoformat(match[1] + zone).timestamp())
    return seconds * 1_000_000_000 + int((match[2] or "0").ljust(9, "0")[:9])


def processes(file):
    """(process id, time, image) of each process that the XML reports as started."""
    def local(tag):
        return tag.rsplit("}", 1)[-1]

    for _, event in xml.etree.ElementTree.iterparse(file):
        if local(event.tag) != "Event":
            continue
        values = {item.get("Name"): item.text or "" for item in event.iter() if local(item.tag) == "Data"}
        text = {local(item.tag): item for item in event.iter()}
        provider = (text["Provider"].get("Guid") or "") if "Provider" in text else ""
        opcodes = [item.text for item in event.iter() if local(item.tag) == "Opcode"]
        name = text["EventName"].text if "EventName" in text else ""
        is_process = name == "Process" or PROCESS in provider.lower()
        if is_process and ("1" in opcodes or "Start" in opcodes) and "ProcessId" in values:
            at = nanoseconds(text["TimeCreated"].get("SystemTime"))
            yield int(values["ProcessId"], 0), at, values.get("ImageFileName", "")
        event.clear()


def judge_xml(pods, file):
    """Processes of spans against what tracerpt reads in the same file."""
    started = {}
    for pid, at, image in processes(file):
        started.setdefault(pid, []).append((at, image))
    check(bool(started), f"tracerpt reports processes ({len(started)})", "A Windows node (one system logger session)")
    for name, trace in pods.items():
        for span in named(trace, "plugin ") + named(trace, "command "):
            pid, image = span["attributes"].get("process.pid"), span["attributes"].get("process.executable.name")
            # A span begins with its process, which tracerpt finds by the id; ids are used again.
            near = [(abs(at - begin(span)), found) for at, found in started.get(pid, []) if found.lower() == str(image).lower()]
            apart = min(near)[0] if near else None
            what = f"{name}: {span['name']}, process {pid}, as tracerpt has it ({'absent' if apart is None else f'{apart / 1e6:.3f} ms'})"
            check(apart is not None and apart <= TRACERPT_NS, what, "A Windows node (decoding of the kernel logger)")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", nargs="+", required=True)
    parser.add_argument("--clock", required=True)
    parser.add_argument("--xml")
    parser.add_argument("--live")
    arguments = parser.parse_args()
    with open(arguments.clock, encoding="utf-8-sig") as file:
        clock = json.load(file)
    found = list(traces(arguments.spans))
    pods = {}
    for pod in clock:
        own = [trace for trace in found if (trace["pod"] or {}).get("name") == pod["pod"] and named(trace, "sandbox")]
        if check(len(own) == 1, f"{pod['pod']}: one trace ({len(own)})", "A Windows node (containerd's provider)"):
            pods[pod["pod"]] = own[0]
            judge_pod(own[0], pod)
    if arguments.xml:
        judge_xml(pods, arguments.xml)
    if arguments.live:
        with open(arguments.live, encoding="utf-8-sig") as file:
            live = file.read()
        for pod in clock:
            check(f'"{pod["pod"]}"' in live, f"{pod['pod']}: the live agent lists it", "A Windows node (live sessions)")
    print(f"{len(FAILED)} of the checks failed")
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
