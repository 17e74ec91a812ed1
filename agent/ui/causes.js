// Causes of failed and slow lookups and connects: name and meaning of each cause in the registry (`registry::CAUSES`).

const CAUSES = {
  conntrack_race: ["Conntrack race", "two packets of one socket raced for one conntrack entry, and one was dropped; the resolver retries after its timeout"],
  conntrack_table_full: ["Conntrack table full", "conntrack had no room for a new entry and dropped the packet"],
  packet_drop: ["Packet dropped", "this node's kernel dropped one of its packets"],
  dns_server_silent: ["DNS server silent", "no answer arrived, and there is no evidence of a drop on this node"],
  dns_server_error: ["DNS server error", "the server answered with an error"],
  dns_server_slow: ["DNS server slow", "the server answered late"],
  search_path: ["Search path", "names queried only because of ndots and the search list took the most time"],
  truncation: ["Truncation", "the answer was truncated, and the retry over TCP failed too"],
  connect_refused: ["Connection refused", "the remote end refused the connection"],
  connect_silent: ["No answer", "no reply came from the remote end or the path to it"],
  unreachable: ["Unreachable", "there is no route to the remote end"],
};

/** Display name of a cause. */
export function causeName(cause) {
  return CAUSES[cause] ? CAUSES[cause][0] : cause.replaceAll("_", " ");
}

/** Meaning of a cause, in one sentence; empty for an unknown one. */
export function causeMeaning(cause) {
  return CAUSES[cause] ? CAUSES[cause][1] : "";
}

/** The lookups and connects of a trace that have a cause, longest first. */
export function findings(trace) {
  return trace.timeline
    .filter((span) => span.attributes["sandglass.cause"])
    .sort((one, other) => other.duration_ns - one.duration_ns)
    .map((span) => ({
      span,
      cause: span.attributes["sandglass.cause"],
      confidence: span.attributes["sandglass.cause.confidence"] || "",
      evidence: span.attributes["sandglass.cause.evidence"] || [],
    }));
}
