// Why lookups and connections go badly: the words for each cause, as the registry names them.

const CAUSES = {
  conntrack_race: ["Conntrack race", "two packets of one socket raced for one conntrack entry, and the loser was dropped; the resolver waits its full timer before it asks again"],
  conntrack_table_full: ["Conntrack table full", "conntrack had no room for another entry and dropped the packet"],
  packet_drop: ["Packet dropped", "the kernel of this node dropped a packet of it"],
  dns_server_silent: ["DNS server silent", "no answer came, and nothing on this node speaks of a drop"],
  dns_server_error: ["DNS server error", "the server answered that it could not"],
  dns_server_slow: ["DNS server slow", "the server answered late"],
  search_path: ["Search path", "names tried only because of ndots and the search list took the most time"],
  truncation: ["Truncation", "the answer was cut, and TCP did not help"],
  connect_refused: ["Connection refused", "the other end said no"],
  connect_silent: ["No answer", "the other end, or the way to it, was silent"],
  unreachable: ["Unreachable", "there is no way there"],
};

/** The name of a cause for people. */
export function causeName(cause) {
  return CAUSES[cause] ? CAUSES[cause][0] : cause.replaceAll("_", " ");
}

/** What it means. */
export function causeMeaning(cause) {
  return CAUSES[cause] ? CAUSES[cause][1] : "";
}

/** The bad lookups and connections of a trace with their causes, longest first. */
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
