// All nodes: is CNI ADD slow, where, because of what, and does it fail?
local p = import 'panel.libsonnet';
local add = 'sandglass_cni_operation_duration_seconds';
local plugin = 'sandglass_cni_plugin_duration_seconds';
// Loopback is requested beside every attachment and would halve every number.
local sel = 'SEL, operation="ADD", network!="cni-loopback"';
local plugins = 'SEL, operation="ADD", plugin!="loopback"';

local quantile(q, metric, selector, by) =
  'histogram_quantile(%s, sum by (le, %s) (increase(%s_bucket{%s}[$__range])))' % [q, by, metric, selector];
local total(metric, selector, by) = 'sum by (%s) (increase(%s_count{%s}[$__range]))' % [by, metric, selector];
local share(metric, selector, by) =
  '%s / (%s > 0)' % [total(metric, selector + ', result="error"', by), total(metric, selector, by)];

p.dashboard('fleet', 'fleet', 'CNI ADD of every node: how long, where the time goes, what fails.', [
  p.row('At a glance', [
    p.stat(
      'Within 5 s',
      'What share of CNI ADDs stayed within the 5 s pod start objective?',
      'percentunit',
      p.now('sum(increase(%s_bucket{%s, le=~"5|5.0"}[$__range])) / sum(increase(%s_count{%s}[$__range]))' % [add, sel, add, sel]),
      p.high(0.95, 0.99)
    ),
    p.stat(
      'ADD p99',
      'How long did the slowest 1 % of CNI ADDs take?',
      's',
      p.now('histogram_quantile(0.99, sum by (le) (increase(%s_bucket{%s}[$__range])))' % [add, sel]),
      p.low(2, 5)
    ),
    p.stat(
      'ADDs failed',
      'What share of CNI ADDs failed?',
      'percentunit',
      p.now('sum(increase(%s_count{%s, result="error"}[$__range])) / sum(increase(%s_count{%s}[$__range]))' % [add, sel, add, sel]),
      p.low(0.01, 0.05)
    ),
    p.stat(
      'Network ready p99',
      'How long after its sandbox was made could a pod use its network, in the slowest 1 %?',
      's',
      p.now('histogram_quantile(0.99, sum by (le) (increase(sandglass_network_ready_duration_seconds_bucket{SEL, result="ready"}[$__range])))'),
      p.low(2, 5)
    ),
    p.stat(
      'Oldest now',
      'How old is the oldest CNI operation that runs now?',
      's',
      p.now('max(sandglass_cni_operation_oldest_age_seconds{SEL})'),
      p.low(10, 60)
    ),
    p.stat(
      'Nodes observed',
      'From how many nodes do numbers come?',
      'none',
      p.now('count(count by (node) (sandglass_build_info{SEL}))')
    ),
  ]),
  p.row('How long', [
    p.lines('ADD duration', 'How long do CNI ADDs take: the typical one, the slow ones, the slowest?', 's', p.quantiles('%s_bucket{%s}' % [add, sel])),
    p.heat('ADD distribution', 'Are there several kinds of ADDs, such as those that wait for a time-out of 1, 5, 10 or 30 s?', '%s_bucket{%s}' % [add, sel]),
    p.lines('ADD p99 by network', 'Is one network slower than the others?', 's', [p.p99By('%s_bucket{%s}' % [add, sel], 'network')]),
    p.lines('ADD p99 by node', 'Is one node slower than the others?', 's', [p.p99By('%s_bucket{%s}' % [add, sel], 'node')]) + p.byNode,
    p.table('Slowest nodes', 'Which nodes have the slowest ADDs, and do they also fail?', [
      p.col('p50', 's', quantile('0.5', add, sel, 'node')),
      p.col('p95', 's', quantile('0.95', add, sel, 'node')),
      p.col('p99', 's', quantile('0.99', add, sel, 'node')),
      p.col('ADDs', 'short', total(add, sel, 'node')),
      p.col('failed', 'percentunit', share(add, sel, 'node')),
    ]),
  ]),
  p.row('Because of what', [
    p.table('Plugins', 'Which plugin takes the time, and which fails?', [
      p.col('p50', 's', quantile('0.5', plugin, plugins, 'plugin')),
      p.col('p95', 's', quantile('0.95', plugin, plugins, 'plugin')),
      p.col('p99', 's', quantile('0.99', plugin, plugins, 'plugin')),
      p.col('runs', 'short', total(plugin, plugins, 'plugin')),
      p.col('failed', 'percentunit', share(plugin, plugins, 'plugin')),
    ]),
    p.lines('ADD p99 by plugin', 'When did which plugin become slow?', 's', [p.p99By('%s_bucket{%s}' % [plugin, plugins], 'plugin')]),
    p.lines('ADD p99 by plugin and node', 'Which plugin is slow on which node?', 's', [p.p99By('%s_bucket{%s}' % [plugin, plugins], 'node, plugin')]) + p.byNode,
    p.lines(
      'Where a sandbox spends its time',
      'Of the time to set up a sandbox, which share do runtime, plugins, delegates and commands take?',
      'percentunit',
      [p.query('sum by (phase) (rate(sandglass_sandbox_phase_duration_seconds_sum{SEL}[$__rate_interval])) / scalar(sum(rate(sandglass_sandbox_phase_duration_seconds_sum{SEL}[$__rate_interval])))', '{{phase}}')],
      max=1,
      stack=true
    ),
    p.lines('Causes found', 'Which causes did the agents name for slow or failed sandboxes and lookups?', 'ops', [
      p.query('sum by (cause) (rate(sandglass_root_causes_total{SEL}[$__rate_interval])) > 0', '{{cause}}'),
    ]),
  ]),
  p.row('What fails', [
    p.lines('Failed ADDs', 'What share of ADDs fails on which network?', 'percentunit', [
      p.query('sum by (network) (rate(%s_count{%s, result="error"}[$__rate_interval])) / sum by (network) (rate(%s_count{%s}[$__rate_interval]))' % [add, sel, add, sel], '{{network}}'),
    ]),
    p.lines('Errors', 'Which plugin fails at what, and with which class of error?', 'ops', [
      p.query('sum by (operation, plugin, error) (rate(sandglass_cni_operation_errors_total{SEL}[$__rate_interval]))', '{{operation}} {{plugin}} {{error}}'),
    ]),
    p.lines('Repeated', 'How often is a sandbox made again, or an operation repeated?', 'ops', [
      p.query('sum(rate(sandglass_sandbox_retries_total{SEL}[$__rate_interval]))', 'sandbox'),
      p.query('sum by (operation) (rate(sandglass_cni_operation_retries_total{SEL}[$__rate_interval])) > 0', '{{operation}}'),
    ]),
    p.lines('Operations running', 'How many CNI operations run at the same time?', 'none', [
      p.query('sum by (operation) (sandglass_cni_operations_in_flight{SEL})', '{{operation}}'),
    ]),
  ]),
  p.row('Can pods use their network', [
    p.lines('Network ready', 'How long after its sandbox was ready did a pod get its first answer or connection?', 's', p.quantiles('sandglass_network_ready_duration_seconds_bucket{SEL, result="ready"}')),
    p.lines('Waiting for the network', 'Of that, how long did the network let the pod wait after its first attempt?', 's', p.quantiles('sandglass_network_wait_duration_seconds_bucket{SEL}')),
    p.lines('Sandboxes by outcome', 'How many sandboxes got a usable network, how many tried in vain, how many never tried?', 'ops', [
      p.query('sum by (result) (rate(sandglass_network_ready_duration_seconds_count{SEL}[$__rate_interval]))', '{{result}}'),
      p.query('sum(rate(sandglass_network_silent_total{SEL}[$__rate_interval]))', 'silent'),
    ]),
    p.lines('Network ready p99 by node', 'On which node do pods wait longest for their network?', 's', [
      p.p99By('sandglass_network_ready_duration_seconds_bucket{SEL, result="ready"}', 'node'),
    ]) + p.byNode,
  ]),
])
