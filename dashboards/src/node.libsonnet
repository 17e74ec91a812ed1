// One node: what its sandboxes wait for.
local p = import 'panel.libsonnet';
local add = 'sandglass_cni_operation_duration_seconds';
local sel = 'SEL, operation="ADD", network!="cni-loopback"';

p.dashboard('node', 'node', 'One node: what its sandboxes wait for. Choose the node above.', [
  p.row('Now', [
    p.stat('Running', 'How many CNI operations run now?', 'none', p.now('sum(sandglass_cni_operations_in_flight{SEL})')),
    p.stat('Oldest', 'How old is the oldest of them?', 's', p.now('max(sandglass_cni_operation_oldest_age_seconds{SEL})'), p.low(10, 60)),
    p.stat('Sandboxes', 'How many sandboxes were made?', 'short', p.now('sum(increase(sandglass_sandbox_setup_duration_seconds_count{SEL}[$__range]))')),
    p.stat('Set-up p99', 'How long did the slowest 1 % of sandboxes take?', 's', p.now('histogram_quantile(0.99, sum by (le) (increase(sandglass_sandbox_setup_duration_seconds_bucket{SEL}[$__range])))'), p.low(3, 5)),
    p.stat('Sandboxes failed', 'What share of sandboxes failed?', 'percentunit', p.now('sum(increase(sandglass_sandbox_setup_duration_seconds_count{SEL, result="error"}[$__range])) / sum(increase(sandglass_sandbox_setup_duration_seconds_count{SEL}[$__range]))'), p.low(0.01, 0.05)),
    p.stat('Probes attached', 'Does the agent observe this node with everything it has?', 'percentunit', p.now('avg(sandglass_probe_attached{SEL})'), p.high(0.5, 1)),
  ]),
  p.row('Sandboxes', [
    p.lines('Sandbox set-up', 'How long does it take to set up a sandbox?', 's', p.quantiles('sandglass_sandbox_setup_duration_seconds_bucket{SEL}')),
    p.heat('Set-up distribution', 'Do sandboxes cluster at the time-outs of 1, 5, 10 or 30 s?', 'sandglass_sandbox_setup_duration_seconds_bucket{SEL}'),
    p.lines('Parts of a sandbox', 'How many seconds of an average sandbox go to runtime, plugins, delegates and commands?', 's', [
      p.query('sum by (phase) (rate(sandglass_sandbox_phase_duration_seconds_sum{SEL}[$__rate_interval])) / sum by (phase) (rate(sandglass_sandbox_phase_duration_seconds_count{SEL}[$__rate_interval]))', '{{phase}}'),
    ], stack=true),
    p.lines('Runtime steps p99', 'Is the runtime itself slow: shim, create, start?', 's', [p.p99By('sandglass_runtime_step_duration_seconds_bucket{SEL}', 'step')]),
  ]),
  p.row('CNI', [
    p.lines('Operations by verb', 'How many ADDs, DELs and CHECKs are there?', 'ops', [
      p.query('sum by (operation) (rate(%s_count{SEL, network!="cni-loopback"}[$__rate_interval]))' % add, '{{operation}}'),
    ]),
    p.lines('Operations p99', 'Which operation on which network is slow?', 's', [p.p99By('%s_bucket{SEL, network!="cni-loopback"}' % add, 'operation, network')]),
    p.lines('Plugins p99', 'Which plugin is slow at which operation?', 's', [p.p99By('sandglass_cni_plugin_duration_seconds_bucket{SEL}', 'operation, plugin')]),
    p.lines('Why ADDs are slow', 'What does the time of slow plugins go to?', 's', [
      p.query('sum by (reason) (rate(sandglass_cni_time_seconds_total{SEL, operation="ADD"}[$__rate_interval]))', '{{reason}}'),
    ], stack=true),
    p.lines('What running operations wait for', 'What do the operations that are slow right now wait for?', 'short', [
      p.query('sum by (operation, reason) (sandglass_cni_operations_waiting{SEL})', '{{operation}} {{reason}}'),
    ], stack=true),
    p.lines('Commands p99', 'Which command that a plugin spawns is slow?', 's', [p.p99By('sandglass_cni_command_duration_seconds_bucket{SEL}', 'plugin, command')]),
    p.lines('Commands', 'How many commands does each plugin spawn?', 'ops', [
      p.query('topk(10, sum by (plugin, command) (rate(sandglass_cni_command_duration_seconds_count{SEL}[$__rate_interval])))', '{{plugin}} {{command}}'),
    ]),
    p.lines('Errors on this node', 'What fails here, and with which class of error?', 'ops', [
      p.query('sum by (operation, plugin, error) (rate(sandglass_cni_operation_errors_total{SEL}[$__rate_interval]))', '{{operation}} {{plugin}} {{error}}'),
    ]),
    p.lines('Repeated on this node', 'Does the runtime try the same thing again and again?', 'ops', [
      p.query('sum by (operation) (rate(sandglass_cni_operation_retries_total{SEL}[$__rate_interval]))', '{{operation}}'),
      p.query('sum(rate(sandglass_sandbox_retries_total{SEL}[$__rate_interval]))', 'sandbox'),
    ]),
    p.lines('Age of the oldest operation', 'Is an operation stuck?', 's', [
      p.query('max by (operation) (sandglass_cni_operation_oldest_age_seconds{SEL})', '{{operation}}'),
    ]),
  ]),
  p.row('Network', [
    p.lines('Network ready here', 'How long after its sandbox was ready did a pod of this node get its first answer or connection?', 's', p.quantiles('sandglass_network_ready_duration_seconds_bucket{SEL, result="ready"}')),
    p.lines('Lookups p99', 'Are lookups of pods slower than those of the node itself?', 's', [p.p99By('sandglass_dns_lookup_duration_seconds_bucket{SEL}', 'scope')]),
    p.lines('Connection table', 'How full is the connection table?', 'percentunit', [
      p.query('sandglass_conntrack_entries{SEL} / sandglass_conntrack_entries_limit{SEL}', '{{node}}'),
    ], max=1),
    p.lines('Causes found here', 'Which causes did the agent name?', 'ops', [
      p.query('sum by (cause) (rate(sandglass_root_causes_total{SEL}[$__rate_interval])) > 0', '{{cause}}'),
    ]),
    p.lines('IP pools', 'How full are the pools of IP addresses that host-local allocates from?', 'percentunit', [
      p.query('sandglass_ip_pool_used_addresses{SEL} / sandglass_ip_pool_addresses{SEL}', '{{network}} {{set}} on {{node}}'),
    ], max=1),
    p.lines('Leaked addresses', 'How many addresses belong to containers that are gone?', 'short', [
      p.query('sandglass_ip_pool_leaked_addresses{SEL}', '{{network}} {{set}} on {{node}}'),
    ]),
  ]),
])
