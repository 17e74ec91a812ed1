#!/usr/bin/env python3
"""Shows the dashboards of dashboards/grafana in a running Grafana, which has them provisioned, and judges what it makes of them.

Usage: grafana.py URL FOLDER. URL is a Grafana whose visitors may read everything, with a data source for Prometheus that has
metrics of an agent. Every query of every panel goes through Grafana. Into FOLDER go Grafana's answers and, if SANDGLASS_BROWSER
names a Chromium, a picture of each dashboard. Run by .github/workflows/ci.yml.
Exits with 1 where a dashboard is missing, a query fails, or no panel of a dashboard for Linux has data.
Does not: judge pictures; a person looks at them.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

DASHBOARDS = Path(__file__).resolve().parent.parent / "dashboards" / "grafana"
# Its metrics are those of a Windows node.
WITHOUT_DATA = {"sandglass-windows"}
# A variable of the dashboard; those with two underscores are Grafana's own, and its back end replaces them.
VARIABLE = re.compile(r"\$\{?(?!__)(\w+)(:\w+)?\}?")


def ask(url, body=None):
    """The answer as JSON, also that of a refused request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.loads(error.read() or b"{}")


def wait_until_up(grafana):
    for _ in range(120):
        try:
            if ask(f"{grafana}/api/health").get("database") == "ok":
                return
        except OSError:
            pass
        time.sleep(1)
    sys.exit(f"error: no Grafana answers at {grafana}")


def panels_of(dashboard):
    """Panels with their queries, those within rows included."""
    for panel in dashboard.get("panels", []):
        yield panel
        yield from panels_of(panel)


def judge_panel(grafana, source, panel):
    """The panel's title, the error of its first query that fails, and the number of values of all of them."""
    values, error = 0, None
    for target in panel.get("targets", []):
        if "expr" not in target:
            continue
        query = {
            "refId": target["refId"],
            "expr": VARIABLE.sub(".*", target["expr"]),
            "datasource": {"type": "prometheus", "uid": source},
            "range": target.get("range", True),
            "instant": target.get("instant", False),
            "intervalMs": 15_000,
            "maxDataPoints": 500,
        }
        answer = ask(f"{grafana}/api/ds/query", {"from": "now-15m", "to": "now", "queries": [query]})
        result = answer.get("results", {}).get(target["refId"], {"error": answer.get("message", "no result")})
        error = error or result.get("error")
        for frame in result.get("frames", []):
            values += max((len(column) for column in frame["data"]["values"]), default=0)
    return {"panel": panel.get("title", ""), "error": error, "values": values}


def picture(browser, grafana, uid, file):
    command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1600,3200", "--virtual-time-budget=30000"]
    command += [f"--screenshot={file}", f"{grafana}/d/{uid}?kiosk&from=now-15m&to=now"]
    # A page that keeps a connection open for news may keep the browser from ending.
    try:
        subprocess.run(command, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{uid}: no picture: {error}")


def main():
    grafana, folder = sys.argv[1].rstrip("/"), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    wait_until_up(grafana)
    sources = [source["uid"] for source in ask(f"{grafana}/api/datasources") if source["type"] == "prometheus"]
    if not sources:
        sys.exit("error: Grafana has no data source of the type prometheus\nhint: provision dashboards/datasources.yaml")
    bad = False
    for file in sorted(DASHBOARDS.glob("*.json")):
        uid = json.loads(file.read_text())["uid"]
        shown = ask(f"{grafana}/api/dashboards/uid/{uid}").get("dashboard")
        if shown is None:
            print(f"{uid}: Grafana does not have it")
            bad = True
            continue
        judged = [judge_panel(grafana, sources[0], panel) for panel in panels_of(shown) if panel.get("targets")]
        (folder / f"{uid}.json").write_text(json.dumps(judged, indent=1))
        with_data = sum(panel["values"] > 0 for panel in judged)
        print(f"{uid}: {with_data} of {len(judged)} panels have data")
        for panel in judged:
            if panel["error"]:
                print(f"{uid}: {panel['panel']}: {panel['error']}")
                bad = True
        if with_data == 0 and uid not in WITHOUT_DATA:
            print(f"{uid}: no panel has data")
            bad = True
        if browser := os.environ.get("SANDGLASS_BROWSER"):
            picture(browser, grafana, uid, folder / f"{uid}.png")
    sys.exit(bad)


if __name__ == "__main__":
    main()
