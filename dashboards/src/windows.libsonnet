// Windows nodes: HNS, HCS and what ADD does not wait for.
local p = import 'panel.libsonnet';
local hns = 'sandglass_hns_operation_duration_seconds';
local hcs = 'sandglass_hcs_operation_duration_seconds';
local failed(metric) = 'sum by (operation) (rate(%s_count{SEL, result="error"}[$__rate_interval])) / sum by (operation) (rate(%s_count{SEL}[$__rate_interval]))' % [metric, metric];

p.dashboard('windows', 'Windows', 'Windows nodes: HNS, HCS, and how long after ADD the interface was ready.', [
  p.row('At a glance', [
    p.stat('HNS p99', 'How long did the slowest 1 % of HNS operations take?', 's', p.now('histogram_quantile(0.99, sum by (le) (increase(%s_bucket{SEL}[$__range])))' % hns), p.low(1, 2), width=6),
    p.stat('HNS failed', 'What share of HNS operations failed?', 'percentunit', p.now('sum(increase(%s_count{SEL, result="error"}[$__range])) / sum(increase(%s_count{SEL}[$__range]))' % [hns, hns]), p.low(0.01, 0.05), width=6),
    p.stat('vNIC ready p99', 'How long after ADD returned was the interface usable, in the slowest 1 %?', 's', p.now('histogram_quantile(0.99, sum by (le) (increase(sandglass_vnic_ready_duration_seconds_bucket{SEL}[$__range])))'), p.low(2, 5), width=6),
    p.stat('Endpoints too many', 'How many more HNS endpoints than sandboxes are there?', 'none', p.now('sum(sandglass_hns_endpoints{SEL} - sandglass_sandboxes{SEL})'), p.low(10, 100), width=6),
  ]),
  p.row('HNS', [
    p.lines('HNS duration', 'How long do HNS operations take?', 's', p.quantiles(hns + '_bucket{SEL}')),
    p.heat('HNS distribution', 'Do HNS operations cluster at a time-out?', hns + '_bucket{SEL}'),
    p.lines('HNS p99 by operation', 'Which HNS operation is slow?', 's', [p.p99By(hns + '_bucket{SEL}', 'operation')]),
    p.lines('HNS p99 by node', 'On which node is HNS slow?', 's', [p.p99By(hns + '_bucket{SEL}', 'node')]) + p.byNode,
    p.lines('HNS operations', 'Which operations does HNS run, and how often?', 'ops', [p.query('sum by (operation) (rate(%s_count{SEL}[$__rate_interval]))' % hns, '{{operation}}')]),
    p.lines('HNS failures', 'Which HNS operation fails?', 'percentunit', [p.query(failed(hns), '{{operation}}')]),
    p.lines('HNS restarts', 'Where was HNS started again, and interrupted by that?', 'short', [p.query('sum by (node) (increase(sandglass_hns_restarts_total{SEL}[$__rate_interval]))', '{{node}}')]) + p.byNode,
  ]),
  p.row('HCS', [
    p.lines('HCS p99 by operation', 'Which HCS operation is slow?', 's', [p.p99By(hcs + '_bucket{SEL}', 'operation')]),
    p.lines('HCS failures', 'Which HCS operation fails?', 'percentunit', [p.query(failed(hcs), '{{operation}}')]),
  ]),
  p.row('After ADD', [
    p.lines('vNIC ready', 'How long after ADD returned was the interface usable?', 's', p.quantiles('sandglass_vnic_ready_duration_seconds_bucket{SEL}')),
    p.lines('vNIC ready p99 by node', 'On which node do pods wait for their interface?', 's', [p.p99By('sandglass_vnic_ready_duration_seconds_bucket{SEL}', 'node')]) + p.byNode,
    p.lines('Endpoints and sandboxes', 'Do HNS endpoints stay behind when their sandbox is gone?', 'none', [
      p.query('sum by (node) (sandglass_hns_endpoints{SEL})', 'endpoints {{node}}'),
      p.query('sum by (node) (sandglass_sandboxes{SEL})', 'sandboxes {{node}}'),
    ]) + p.byNode,
    p.lines('ETW events lost', 'Did Windows drop events before the agent could read them?', 'ops', [p.query('sum by (node, session) (rate(sandglass_etw_events_lost_total{SEL}[$__rate_interval]))', '{{node}} {{session}}')]) + p.byNode,
  ]),
])
