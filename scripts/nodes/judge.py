#!/usr/bin/env python3
"""Judges the agent of any node: makes pods, and holds its traces, metrics and `doctor` against what was seen from outside.

Usage: judge.py EVIDENCE --plugin NAME.. [options]. Runs on the node itself, since times are compared, as a user who may make pods.
  --plugin NAME      a CNI plugin that each pod's trace must have; as often as there are plugins
  --daemon NAME      a daemon that some pod's trace must have a request to
  --kubectl COMMAND  with what pods are made ("kubectl")
  --crictl COMMAND   in its place, where there is no kubelet: pods are sandboxes, every second one as a kubelet requests them
  --agent COMMAND    starts the agent, and ends it at the end; without it one runs already
  --doctor COMMAND   prints what `sandglass doctor --json` prints where the agent runs
  --page, --metrics  the agent's addresses (http://127.0.0.1:9478, http://127.0.0.1:9477)
  --pods NUMBER      how many pods (5)
  --image NAME       the image of their container, which needs no command
  --networks DIR, --plugins DIR  the runtime's folders of network lists and plugins: its list gets one more plugin for a while, by
                     which two more pods are slow and refused
  --shared           others use this machine too: what is lost or not understood of their traffic is not judged
  --limitation TEXT  the line of LIMITATIONS.md that a failure would confirm
  --seconds NUMBER   longest wait for pods, traces and deletions, each (180)
Prints a line for each check, and last `passed: N checks` or `failed: M of N checks`; exits with 1 where one failed. Into EVIDENCE
go the judgement, pods, traces, metrics and whatever else is known of the node.
Used by .github/workflows/nodes.yml, agent/tests/workflows/nodes.rs, agent/tests/cluster.rs and agent/demo/tests/end_to_end/crio.rs.
Does not: install anything.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import urllib.request
import uuid

NAMESPACE = "sandglass-judge"
SLOW, REFUSED = "judge-slow", "judge-refused"
SLOW_SECONDS = 2
MESSAGE = "the judge refuses this pod"
# Both clocks are the node's; the agent's is the boot clock with one anchor for each trace.
CLOCKS_NS = 500_000_000
# Times in a pod's status are whole seconds (metav1.Time).
SECOND_NS = 1_000_000_000
# A kubelet tries again, crictl does not.
ATTEMPTS = 2
# Probes, and tables, that others on the machine can flood.
TRAFFIC = {"dns", "connect", "conntrack", "drops"}
TABLES = {"connects", "flows", "lookups"}
# Series of /metrics that must not grow meanwhile.
LOSSES = ["events_lost_total", "events_orphan_total", "events_undecodable_total", "evicted_total", "shed_total"]

# The last plugin of the judge's list. CRI-O executes plugins for VERSION too (ocicni). libcni writes keys in order, on one line.
PLUGIN = f"""#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{{"cniVersion":"1.0.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}}' ;;
ADD)
    case $CNI_ARGS in
    *K8S_POD_NAME={REFUSED}*)
        echo '{{"cniVersion":"1.0.0","code":112,"msg":"{MESSAGE}","details":""}}'
        exit 1
        ;;
    *K8S_POD_NAME={SLOW}*) sleep {SLOW_SECONDS} ;;
    esac
    sed -n 's/.*"prevResult":\\(.*\\),"type":.*/\\1/p'
    ;;
esac
"""
PLUGIN_NAME, LIST_NAME = "sandglass-judge", "00-sandglass-judge.conflist"


class Stop(Exception):
    """Nothing that comes after can be judged."""


class Judgement:
    """The checks, as printed and as kept."""

    def __init__(self, evidence, limitation):
        self.file = open(evidence / "judgement.txt", "w", encoding="utf-8")
        self.beside = f" [LIMITATIONS: {limitation}]" if limitation else ""
        self.made, self.failed = 0, 0

    def say(self, line):
        print(line, flush=True)
        print(line, file=self.file, flush=True)

    def check(self, good, what):
        self.made += 1
        self.failed += not good
        self.say(f"{'ok    ' if good else 'FAILED'} {what}{'' if good else self.beside}")
        return good

    def end(self):
        if self.failed:
            self.say(f"failed: {self.failed} of {self.made} checks")
        else:
            self.say(f"passed: {self.made} checks")
        return 1 if self.failed else 0


def run(command, *arguments, text=None, seconds=300):
    """What the command prints on its standard output."""
    line = [*shlex.split(command), *arguments]
    # Nothing reads the judge's own standard input, which may be a script's rest.
    source = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        done = subprocess.run(line, timeout=seconds, check=False, **source, **kept)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Stop(str(problem)) from problem
    if done.returncode != 0:
        raise Stop(f"{' '.join(line)}: exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def until(seconds, condition, pause=0.5):
    """Waits until `condition` returns something; None where it does not in time."""
    end = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        if time.monotonic() > end:
            return None
        time.sleep(pause)


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def seconds_of(text):
    """Nanoseconds of a time of Kubernetes' API."""
    return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * SECOND_NS)


class Kubernetes:
    """Pods of an API server."""

    attempts = ATTEMPTS

    def __init__(self, arguments, evidence):
        self.command, self.image, self.seconds, self.evidence = arguments.kubectl, arguments.image, arguments.seconds, evidence

    def kubectl(self, *arguments, text=None):
        return run(self.command, *arguments, "--namespace", NAMESPACE, text=text)

    def pods(self):
        return {pod["metadata"]["name"]: pod for pod in json.loads(self.kubectl("get", "pods", "--output=json"))["items"]}

    def make(self, names):
        """Makes pods at the same time; what is known of each from outside, by name."""
        run(self.command, "create", "namespace", NAMESPACE)

        def may_have_pods():
            try:
                return self.kubectl("get", "serviceaccount", "default")
            except Stop:
                return None

        if not until(60, may_have_pods):
            raise Stop("the namespace gets no service account")
        container = {"name": "pause", "image": self.image, "imagePullPolicy": "IfNotPresent"}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
        items = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec} for name in names]
        begin = time.time_ns()
        self.kubectl("apply", "--filename", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        made = {name: {"name": name, "uid": None, "begin_ns": begin, "end_ns": None, "sandbox": None, "error": ""} for name in names}

        def all_run():
            pods = self.pods()
            (self.evidence / "pods.json").write_text(json.dumps(pods, indent=1))
            for name, pod in made.items():
                found = pods.get(name, {})
                pod["uid"] = found.get("metadata", {}).get("uid")
                if pod["end_ns"] is None and found.get("status", {}).get("phase") == "Running":
                    pod["end_ns"] = self.ready(found["status"])
            return all(pod["end_ns"] for pod in made.values() if pod["name"] != REFUSED)

        until(self.seconds, all_run)
        return made

    def ready(self, status):
        """When the sandbox was there at the latest: the kubelet said so, and its container ran. Both are after the runtime's response."""
        times = [time.time_ns()]
        for condition in status.get("conditions", []):
            if condition["type"] == "PodReadyToStartContainers" and condition["status"] == "True":
                times.append(seconds_of(condition["lastTransitionTime"]) + SECOND_NS)
        for container in status.get("containerStatuses", []):
            started = container.get("state", {}).get("running", {}).get("startedAt")
            times += [seconds_of(started) + SECOND_NS] if started else []
        return min(times)

    def remove(self, pods):
        self.kubectl("delete", "pod", "--wait", "--ignore-not-found", *(pod["name"] for pod in pods))

    def clean(self):
        run(self.command, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")

    def tell(self):
        yield "nodes.txt", [self.command, "get", "nodes", "--output=wide"]
        yield "nodes.yaml", [self.command, "get", "nodes", "--output=yaml"]
        yield "all-pods.txt", [self.command, "get", "pods", "--all-namespaces", "--output=wide"]
        yield "events.txt", [self.command, "get", "events", "--all-namespaces"]
        yield "described.txt", [self.command, "describe", "pods", "--namespace", NAMESPACE]


class Runtime:
    """Sandboxes of a runtime, as crictl requests them."""

    attempts = 1

    def __init__(self, arguments, evidence):
        self.command, self.evidence = arguments.crictl, evidence

    def make(self, names):
        made = {}
        for number, name in enumerate(names):
            uid = str(uuid.uuid4())
            # As a kubelet requests it, processes are of each container (NamespaceMode of the CRI): CRI-O starts none for the sandbox then.
            linux = {"security_context": {"namespace_options": {"pid": number % 2}}}
            file = self.evidence / f"{name}.pod.json"
            file.write_text(json.dumps({"metadata": {"name": name, "namespace": NAMESPACE, "uid": uid, "attempt": 0}, "linux": linux}))
            pod = {"name": name, "uid": uid, "begin_ns": time.time_ns(), "end_ns": None, "sandbox": None, "error": ""}
            made[name] = pod
            try:
                pod["sandbox"] = run(self.command, "runp", str(file)).strip()
                pod["end_ns"] = time.time_ns()
            except Stop as problem:
                (self.evidence / f"{name}.error.txt").write_text(str(problem))
                pod["error"] = f" ({str(problem).splitlines()[-1]})"
        return made

    def remove(self, pods):
        for sandbox in [pod["sandbox"] for pod in pods if pod["sandbox"]]:
            run(self.command, "stopp", sandbox)
            run(self.command, "rmp", sandbox)

    def clean(self):
        pass

    def tell(self):
        yield "version.txt", [self.command, "version"]
        yield "info.json", [self.command, "info"]
        yield "all-pods.json", [self.command, "pods", "--output=json"]


class Agent:
    """The agent's page, metrics and `doctor`."""

    def __init__(self, arguments, evidence):
        self.page, self.at, self.evidence = arguments.page.rstrip("/"), arguments.metrics.rstrip("/"), evidence
        self.command, self.process = arguments.agent, None

    def start(self):
        """Starts it where it does not run yet, and waits until it is ready."""
        if self.command:
            with open(self.evidence / "agent.log", "wb") as log:
                # Its own session: a Ctrl-C is the judge's, which ends it.
                kept = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                self.process = subprocess.Popen(shlex.split(self.command), start_new_session=True, **kept)

        def ready():
            if self.process and self.process.poll() is not None:
                log = (self.evidence / "agent.log").read_text(errors="replace")
                raise Stop(f"the agent ended with code {self.process.returncode}: {log.strip()[-600:]}")
            try:
                return get(f"{self.at}/readyz")
            except OSError:
                return None

        if until(60, ready) is None:
            raise Stop(f"no agent is ready at {self.at}")

    def end(self):
        """The exit code of an agent that was started here."""
        if not self.process:
            return None
        self.process.terminate()
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def json(self, path, name=None):
        text = get(self.page + path)
        if name:
            (self.evidence / name).write_text(text)
        return json.loads(text)

    def rows(self, kind, name=None):
        rows = self.json(f"/api/v1/sandboxes?kind={kind}&limit=1000&q={NAMESPACE}", name)["rows"]
        return [row for row in rows if row["namespace"] == NAMESPACE]

    def traces(self):
        """Every trace of a sandbox of the judge, in full."""
        (self.evidence / "traces").mkdir(exist_ok=True)
        found = []
        for number, row in enumerate(self.rows("sandbox", "sandboxes.json")):
            path = f"/api/v1/traces/{row['trace_id']}/{row['root_span_id']}"
            found.append(self.json(path, f"traces/{row['pod']}-{number}.json"))
        return found

    def metrics(self, name):
        """Series by name and labels."""
        text = get(f"{self.at}/metrics")
        (self.evidence / name).write_text(text)
        line = re.compile(r"sandglass_(\w+)(\{[^}]*\})? ([^ ]+)")
        found = (line.match(series) for series in text.splitlines())
        return {(match[1], match[2] or ""): float(match[3]) for match in found if match}


def is_open(row):
    return row["running"] or row["result"] == "waiting"


def named(trace, name):
    return [span for span in trace["timeline"] if span["name"] == name]


def begin(span):
    return int(span["start_unix_ns"])


def end(span):
    return int(span.get("end_unix_ns") or 0)


def lost_by(trace):
    """The probes of which records were lost while it was open; empty where another reason makes it incomplete."""
    events = [event for span in trace["timeline"][:1] for event in span["events"] if event["name"] == "records lost"]
    return {value for event in events for key, value in event["attributes"] if key == "sandglass.probe"}


def judge_trace(judgement, trace, pod, arguments):
    """What holds of every pod that was made."""
    name = pod["name"]
    judgement.check(trace["result"] == "ok", f"{name}: its trace has no failure ({trace['result']}: {trace['verdict']})")
    lost = lost_by(trace)
    if trace["incomplete"] and arguments.shared and lost and lost <= TRAFFIC:
        judgement.say(f"NOT JUDGED judge::complete_{name}: traffic of others was lost by {', '.join(sorted(lost))}")
    else:
        judgement.check(not trace["incomplete"], f"{name}: its trace is complete{f' (lost: {sorted(lost)})' if lost else ''}")
    judgement.check(all(end(span) for span in trace["timeline"]), f"{name}: every span has an end")
    identity = trace["identity"]
    known = (identity["name"], identity["namespace"]) == (name, NAMESPACE)
    judgement.check(known, f"{name}: name and namespace are the pod's ({identity['namespace']}/{identity['name']})")
    if pod["sandbox"]:
        judgement.check(trace.get("sandbox") == pod["sandbox"], f"{name}: the sandbox is crictl's ({trace.get('sandbox')})")
    wanted = [*arguments.plugin, *([PLUGIN_NAME] if arguments.networks else [])]
    names = sorted({span["name"] for span in trace["timeline"] if span["name"].startswith("plugin ")})
    for plugin in wanted:
        judgement.check(bool(named(trace, f"plugin {plugin}")), f"{name}: has plugin {plugin} (of {', '.join(names) or 'none'})")
    creations = named(trace, "sandbox.create")
    if not judgement.check(len(creations) == 1, f"{name}: one sandbox.create ({len(creations)})"):
        return
    create = creations[0]
    before, after = begin(create) - pod["begin_ns"], pod["end_ns"] - end(create)
    took = create["duration_ns"] / 1e6
    figures = f"{took:.1f} ms, from {before / 1e6:.1f} ms after the request until {after / 1e6:.1f} ms before it was known to be there"
    within = before >= -CLOCKS_NS and after >= -CLOCKS_NS
    judgement.check(within, f"{name}: the creation is within what was seen from outside ({figures})")
    adds = named(trace, "cni ADD")
    inside = [add for add in adds if begin(create) <= begin(add) and end(add) <= end(create)]
    judgement.check(bool(adds) and len(inside) == len(adds), f"{name}: each cni ADD is within the creation ({len(inside)} of {len(adds)})")
    if name == SLOW:
        long = [span for span in named(trace, f"plugin {PLUGIN_NAME}") if span["duration_ns"] >= SLOW_SECONDS * SECOND_NS]
        judgement.check(bool(long), f"{name}: plugin {PLUGIN_NAME} took {SLOW_SECONDS} s or more")
        judgement.check(bool(named(trace, "command sleep")), f"{name}: has command sleep")


def judge_refused(judgement, traces, attempts):
    failed = [trace for trace in traces if trace["result"] == "failed"]
    all_failed = len(failed) == len(traces) and len(failed) >= attempts
    judgement.check(all_failed, f"{REFUSED}: each of {attempts} attempts or more failed ({len(failed)} of {len(traces)})")
    messages = {span.get("error_message") for trace in failed for span in named(trace, f"plugin {PLUGIN_NAME}")}
    judgement.check(messages == {MESSAGE}, f"{REFUSED}: the failure has the plugin's own message ({messages})")


def judge_traces(judgement, traces, pods, arguments, attempts):
    by_uid = {}
    for trace in traces:
        by_uid.setdefault(trace["identity"]["uid"], []).append(trace)
    strangers = sorted({trace["pod"] for trace in traces} - set(pods))
    judgement.check(not strangers, f"every trace is of a pod that was made{f' ({strangers} are not)' if strangers else ''}")
    for name, pod in pods.items():
        own = by_uid.get(pod["uid"], [])
        if name == REFUSED:
            judge_refused(judgement, own, attempts)
            continue
        if not judgement.check(pod["end_ns"] is not None, f"{name}: runs{pod['error']}"):
            continue
        if judgement.check(len(own) == 1, f"{name}: one trace ({len(own)})"):
            judge_trace(judgement, own[0], pod, arguments)
    for daemon in arguments.daemon:
        having = sum(bool(named(trace, f"daemon {daemon}")) for trace in traces)
        judgement.check(having > 0, f"a trace has a request to the daemon {daemon} ({having} of {len(traces)})")


def judge_removal(judgement, agent, pods, seconds):
    good = [name for name, pod in pods.items() if name != REFUSED and pod["end_ns"]]

    def removed():
        rows = [row for row in agent.rows("operation", "operations.json") if row.get("operation") == "DEL" and not is_open(row)]
        return rows if {row["pod"] for row in rows} >= set(good) else None

    rows = until(seconds, removed) or agent.rows("operation", "operations.json")
    for name in good:
        own = [row for row in rows if row["pod"] == name and row.get("operation") == "DEL"]
        whole = [row for row in own if row["result"] == "ok" and not row["incomplete"]]
        judgement.check(bool(whole), f"{name}: its DEL is traced, complete and without failure ({len(whole)} of {len(own)})")


def judge_losses(judgement, before, after, shared):
    """Nothing was lost, and nothing seen whose owner was not. Of an orphan nobody knows whether it was traffic."""
    for metric in LOSSES:
        grown = {labels: after[name, labels] - before.get((name, labels), 0) for name, labels in after if name == metric}
        grown = {labels: value for labels, value in grown.items() if value > 0}
        others = {labels for labels in grown if any(f'"{owner}"' in labels for owner in TRAFFIC | TABLES)}
        excused = grown if metric == "events_orphan_total" else others
        if shared and excused:
            judgement.say(f"NOT JUDGED judge::{metric}: traffic of others may be in it: {grown}")
            grown = {labels: value for labels, value in grown.items() if labels not in excused}
            if not grown:
                continue
        judgement.check(not grown, f"{metric} did not grow{f': {grown}' if grown else ''}")


def judge_doctor(judgement, command, evidence):
    # Its exit code is 1 where something failed, and the report is what counts.
    try:
        kept = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(shlex.split(command), timeout=120, check=False, **kept)
        (evidence / "doctor.json").write_text(done.stdout)
        report = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as problem:
        judgement.check(False, f"doctor answers ({problem})")
        return
    findings = [finding for section in report["sections"] for finding in section["findings"]]
    judgement.check(bool(findings), f"doctor answers ({len(findings)} findings)")
    for finding in findings:
        if finding["level"] == "fail":
            judgement.check(False, f"doctor: {finding['check']}: {finding['what']}")
        elif finding["level"] == "warn":
            judgement.say(f"note   doctor warns: {finding['check']}: {finding['what']}")


class Network:
    """The runtime's network list with one more plugin."""

    def __init__(self, networks, plugins):
        self.list, self.plugin = pathlib.Path(networks) / LIST_NAME, pathlib.Path(plugins) / PLUGIN_NAME

    def put(self):
        lists = sorted(file for file in self.list.parent.glob("*.conflist") if file != self.list)
        if not lists:
            raise Stop(f"{self.list.parent} has no network list")
        network = json.loads(lists[0].read_text())
        network["plugins"].append({"type": PLUGIN_NAME})
        self.plugin.write_text(PLUGIN)
        self.plugin.chmod(0o755)
        # Renamed, so that the runtime never reads half of it.
        new = self.list.with_suffix(".new")
        new.write_text(json.dumps(network))
        os.replace(new, self.list)
        # The runtime is told of changes in the folder, and reads it at once.
        time.sleep(3)

    def remove(self):
        self.list.unlink(missing_ok=True)
        self.plugin.unlink(missing_ok=True)


def gather(source, agent, evidence):
    """Whatever else is known of the node, for those who look into a failure."""
    for name, (command, *arguments) in source.tell():
        try:
            (evidence / name).write_text(run(command, *arguments))
        except Stop as problem:
            (evidence / name).write_text(f"{problem}\n")
    for name in ["health", "known", "operations", "network"]:
        try:
            agent.json(f"/api/v1/{name}", f"agent-{name}.json")
        except (OSError, ValueError) as problem:
            (evidence / f"agent-{name}.json").write_text(f"{problem}\n")


def judge(arguments, judgement, source, agent, network):
    if arguments.doctor:
        judge_doctor(judgement, arguments.doctor, agent.evidence)
    else:
        judgement.say("NOT RUN judge::doctor: no --doctor")
    if network:
        network.put()
    agent.start()
    before = agent.metrics("metrics-before.prom")
    names = [f"judge-{number}" for number in range(1, arguments.pods + 1)] + ([SLOW, REFUSED] if arguments.networks else [])
    pods = source.make(names)
    (agent.evidence / "clock.json").write_text(json.dumps(list(pods.values()), indent=1))
    if REFUSED in pods:
        # Its attempts would never end.
        def refused_often():
            return sum(row["pod"] == REFUSED and row["result"] == "failed" for row in agent.rows("sandbox")) >= source.attempts

        until(arguments.seconds, refused_often)
        source.remove([pods[REFUSED]])

    def all_closed():
        rows = agent.rows("sandbox")
        return {row["pod"] for row in rows} >= set(names) and not any(is_open(row) for row in rows)

    until(arguments.seconds, all_closed)
    judge_traces(judgement, agent.traces(), pods, arguments, source.attempts)
    gather(source, agent, agent.evidence)
    source.remove([pod for name, pod in pods.items() if name != REFUSED])
    judge_removal(judgement, agent, pods, arguments.seconds)
    judge_losses(judgement, before, agent.metrics("metrics-after.prom"), arguments.shared)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evidence", type=pathlib.Path)
    parser.add_argument("--plugin", action="append", required=True)
    parser.add_argument("--daemon", action="append", default=[])
    parser.add_argument("--kubectl", default="kubectl")
    parser.add_argument("--crictl")
    parser.add_argument("--agent")
    parser.add_argument("--doctor")
    parser.add_argument("--page", default="http://127.0.0.1:9478")
    parser.add_argument("--metrics", default="http://127.0.0.1:9477")
    parser.add_argument("--pods", type=int, default=5)
    parser.add_argument("--image", default="registry.k8s.io/pause:3.10")
    parser.add_argument("--networks")
    parser.add_argument("--plugins")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--limitation")
    parser.add_argument("--seconds", type=int, default=180)
    arguments = parser.parse_args()
    if bool(arguments.networks) != bool(arguments.plugins):
        parser.error("--networks and --plugins belong together")
    return arguments


def main():
    arguments = parse()
    evidence = arguments.evidence.absolute()
    evidence.mkdir(parents=True, exist_ok=True)
    judgement = Judgement(evidence, arguments.limitation)
    source = (Runtime if arguments.crictl else Kubernetes)(arguments, evidence)
    agent = Agent(arguments, evidence)
    network = Network(arguments.networks, arguments.plugins) if arguments.networks else None
    try:
        judge(arguments, judgement, source, agent, network)
    except (Stop, OSError, KeyError, ValueError) as problem:
        judgement.check(False, f"the judge gets to the end ({type(problem).__name__}: {problem})")
        gather(source, agent, evidence)
    finally:
        try:
            source.clean()
        except Stop as problem:
            judgement.say(f"note   {problem}")
        if network:
            network.remove()
    code = agent.end()
    if code is not None:
        judgement.check(code == 0, f"the agent ends with code 0 ({code})")
    return judgement.end()


if __name__ == "__main__":
    sys.exit(main())
