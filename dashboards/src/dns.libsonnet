// DNS, connections and conntrack: what happens after ADD returned.
local p = import 'panel.libsonnet';
local dns = 'sandglass_dns_lookup_duration_seconds';
local rate(metric, by) = 'sum by (%s) (rate(%s{SEL}[$__rate_interval]))' % [by, metric];

p.dashboard('dns', 'DNS and conntrack', 'Lookups, connections, NAT and the connection table: what happens after ADD returned.', [
  p.row('At a glance', [
    p.stat('Lookups timed out', 'What share of lookups never got an answer?', 'percentunit', p.now('sum(increase(%s_count{SEL, rcode="timeout"}[$__range])) / sum(increase(%s_count{SEL}[$__range]))' % [dns, dns]), p.low(0.001, 0.01)),
    p.stat('Lookup p99', 'How long did the slowest 1 % of lookups take?', 's', p.now('histogram_quantile(0.99, sum by (le) (increase(%s_bucket{SEL}[$__range])))' % dns), p.low(0.5, 2)),
    p.stat('Search path', 'What share of queries were made only because of the search path (ndots)?', 'percentunit', p.now('sum(increase(sandglass_dns_search_names_total{SEL}[$__range])) / sum(increase(sandglass_dns_queries_total{SEL}[$__range]))'), p.low(0.5, 0.8)),
    p.stat('Table use', 'How full is the fullest connection table?', 'percentunit', p.now('max(sandglass_conntrack_entries{SEL} / sandglass_conntrack_entries_limit{SEL})'), p.low(0.8, 0.95)),
    p.stat('insert_failed', 'How many packets were lost because two raced for the same conntrack entry?', 'short', p.now('sum(increase(sandglass_conntrack_insert_failed_total{SEL}[$__range]))'), p.low(1, 100)),
    p.stat('Connects failed', 'What share of connection attempts failed?', 'percentunit', p.now('sum(increase(sandglass_connect_duration_seconds_count{SEL, result!="established"}[$__range])) / sum(increase(sandglass_connect_duration_seconds_count{SEL}[$__range]))'), p.low(0.01, 0.05)),
  ]),
  p.row('Lookups', [
    p.lines('Lookup duration', 'How long do lookups take?', 's', p.quantiles(dns + '_bucket{SEL}')),
    p.heat('Lookup distribution', 'Is there a band at 5 s (or 2.5 s), which is a resolver trying again?', dns + '_bucket{SEL}'),
    p.lines('Answers', 'What do lookups end with?', 'ops', [p.query(rate(dns + '_count', 'rcode'), '{{rcode}}')]),
    p.lines('Lookups timed out by node', 'On which node do lookups time out?', 'percentunit', [
      p.query('topk(10, sum by (node) (rate(%s_count{SEL, rcode="timeout"}[$__rate_interval])) / sum by (node) (rate(%s_count{SEL}[$__rate_interval])))' % [dns, dns], '{{node}}'),
    ]) + p.byNode,
    p.lines('Queries', 'Which types are queried, over which transport?', 'ops', [p.query(rate('sandglass_dns_queries_total', 'type, transport'), '{{type}} {{transport}}')]),
    p.lines('Queries without need or answer', 'How many queries are sent again, stay without an answer, come from the search path, or are cut short?', 'ops', [
      p.query(rate('sandglass_dns_retransmissions_total', 'scope'), 'sent again, {{scope}}'),
      p.query(rate('sandglass_dns_unanswered_total', 'scope'), 'no answer, {{scope}}'),
      p.query(rate('sandglass_dns_search_names_total', 'scope'), 'search path, {{scope}}'),
      p.query(rate('sandglass_dns_truncated_total', 'scope'), 'truncated, {{scope}}'),
    ]),
    p.lines('Malformed messages', 'Are there messages that are no DNS messages?', 'ops', [p.query('sum by (node) (rate(sandglass_dns_malformed_total{SEL}[$__rate_interval]))', '{{node}}')]) + p.byNode,
    p.lines('Causes', 'Which causes do bad lookups and connections have?', 'ops', [p.query(rate('sandglass_root_causes_total', 'cause') + ' > 0', '{{cause}}')]),
  ]),
  p.row('Connections', [
    p.lines('Connect duration', 'How long does it take to set up a connection?', 's', p.quantiles('sandglass_connect_duration_seconds_bucket{SEL, result="established"}')),
    p.lines('Connects by result', 'How do connection attempts end?', 'ops', [p.query(rate('sandglass_connect_duration_seconds_count', 'result'), '{{result}}')]),
    p.lines('SYNs sent again', 'How often must a connection attempt be repeated?', 'ops', [p.query(rate('sandglass_connect_retransmissions_total', 'scope'), '{{scope}}')]),
    p.lines('Packets dropped', 'Which DNS and SYN packets does the kernel drop, and why?', 'pps', [p.query(rate('sandglass_packet_drops_total', 'packet, reason') + ' > 0', '{{packet}} {{reason}}')]),
    p.lines('Bad lookups and connects traced', 'How many lookups and connects after readiness were bad enough to be traced, and how many more were held back?', 'ops', [
      p.query(rate('sandglass_journeys_total', 'reason'), '{{reason}}'),
      p.query('sum(rate(sandglass_journeys_held_back_total{SEL}[$__rate_interval]))', 'held back'),
    ]),
  ]),
  p.row('conntrack', [
    p.lines('Connection table use', 'How full are the connection tables of the nodes?', 'percentunit', [
      p.query('topk(10, sandglass_conntrack_entries{SEL} / sandglass_conntrack_entries_limit{SEL})', '{{node}}'),
    ], max=1) + p.byNode,
    p.lines('Entries lost', 'Does the table refuse, drop or evict connections?', 'ops', [
      p.query(rate('sandglass_conntrack_insert_failed_total', 'scope'), 'insert_failed, {{scope}}'),
      p.query(rate('sandglass_conntrack_drop_total', 'scope'), 'drop, {{scope}}'),
      p.query(rate('sandglass_conntrack_early_drop_total', 'scope'), 'early_drop, {{scope}}'),
    ]),
    p.lines('insert_failed by node', 'On which node do packets race for a conntrack entry?', 'ops', [
      p.query('topk(10, sum by (node) (rate(sandglass_conntrack_insert_failed_total{SEL}[$__rate_interval])))', '{{node}}'),
    ]) + p.byNode,
    p.lines('Clashes', 'How often did the kernel resolve a race, or restart a search of the table?', 'ops', [
      p.query(rate('sandglass_conntrack_clash_resolve_total', 'scope'), 'clash resolved, {{scope}}'),
      p.query(rate('sandglass_conntrack_search_restart_total', 'scope'), 'search restarted, {{scope}}'),
    ]),
    p.lines('Flows', 'How many connections begin and end?', 'ops', [p.query(rate('sandglass_conntrack_flows_total', 'scope, change'), '{{change}}, {{scope}}')]),
    p.lines('Translated flows', 'How many connections are translated, and at which end?', 'ops', [p.query(rate('sandglass_conntrack_nat_total', 'scope, nat'), '{{nat}}, {{scope}}')]),
  ]),
])
