// The frame of the page: routing to a view, the event stream, theme and keyboard.
// A view is a function (root, params, shared) that returns { row, health, network, reload, tick, keys, leave }, all optional.

import { follow } from "./api.js";
import { agentView } from "./agent.js";
import { say } from "./dom.js";
import { unixMs } from "./format.js";
import { listen, showHelp } from "./keys.js";
import { listView } from "./list.js";
import { networkView } from "./network.js";
import { traceView } from "./trace.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const broken = document.getElementById("broken");

/** State that all views share. Ages are computed on the agent's clock, not on this machine's. */
const shared = {
  health: null,
  skewMs: 0,
  lastList: "#/",
  now: () => Date.now() + shared.skewMs,
  setNow: (text) => {
    shared.skewMs = unixMs(text) - Date.now();
  },
};

let view = {};

function route() {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const params = new URLSearchParams(query || "");
  const parts = path.split("/").filter(Boolean);
  if (view.leave) view.leave();
  main.replaceChildren();
  let name = "sandboxes";
  if (parts[0] === "trace" && parts[1]) {
    view = traceView(main, { id: parts[1], within: parts[2] || "", span: parts[3] || "" }, shared);
    name = "";
  } else if (parts[0] === "agent") {
    view = agentView(main, params, shared);
    name = "agent";
  } else if (parts[0] === "network") {
    shared.lastList = "#/network";
    view = networkView(main, params, shared);
    name = "network";
  } else {
    name = ["operations", "journeys"].includes(parts[0]) ? parts[0] : "sandboxes";
    shared.lastList = location.hash || "#/";
    view = listView(main, { name, params }, shared);
  }
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view.split(" ").includes(name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
}

function showHealth(report) {
  shared.health = report;
  shared.setNow(report.now_unix_ns);
  const node = document.getElementById("node");
  say(node, report.node.name);
  node.hidden = !report.node.name;
  node.title = `${report.node.os} ${report.node.kernel} ${report.node.machine}`;
  const trouble = report.not_alive || report.not_ready || report.lost.total > 0 || report.probes.some((probe) => !probe.attached);
  document.getElementById("agent-mark").hidden = !trouble;
  if (view.health) view.health(report);
}

let openedBefore = false;
follow({
  open() {
    broken.hidden = true;
    live.className = "live on";
    say(live, "live");
    // Changes during the disconnect were missed. On the first connect the view loads by itself.
    if (openedBefore && view.reload) view.reload();
    openedBefore = true;
  },
  broken() {
    live.className = "live off";
    say(live, "offline");
    say(broken, "Disconnected from the agent: what is shown may be outdated. Reconnecting…");
    broken.hidden = false;
  },
  row: (row) => view.row && view.row(row),
  health: showHealth,
  network: () => view.network && view.network(),
  reload: () => view.reload && view.reload(),
});

setInterval(() => view.tick && !document.hidden && view.tick(), 250);

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function showTheme() {
  say(document.getElementById("theme"), dark() ? "☀" : "☾");
}

function switchTheme() {
  const next = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("sandglass.theme", next);
  } catch {
    // Storage is forbidden: the theme lasts until the page is closed.
  }
  showTheme();
}

document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", showHelp);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
showTheme();

const go = (hash) => () => {
  location.hash = hash;
};
const inView = (key) => (event) => (view.keys && view.keys[key] ? view.keys[key](event) : false);
listen({
  "?": showHelp,
  t: switchTheme,
  g: go("#/"),
  o: go("#/operations"),
  n: go("#/network"),
  a: go("#/agent"),
  r: () => view.reload && view.reload(),
  j: inView("down"),
  ArrowDown: inView("down"),
  k: inView("up"),
  ArrowUp: inView("up"),
  z: inView("zoom"),
  "/": inView("search"),
  Escape: inView("back"),
});

addEventListener("hashchange", route);
route();
