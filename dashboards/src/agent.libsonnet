// The agent itself: does it see everything, does it deliver it, what does it cost?
local p = import 'panel.libsonnet';
local rate(metric, by, more='') = 'sum by (%s) (rate(%s{SEL%s}[$__rate_interval]))' % [by, metric, more];

p.dashboard('agent', 'agent', 'The agent itself: does it see everything, does it deliver it, what does it cost?', [
  p.row('At a glance', [
    p.stat('Agents', 'How many agents answer?', 'none', p.now('count(sandglass_build_info{SEL})')),
    p.stat('Agents down', 'How many agents that should answer do not?', 'none', p.now('count(up{SEL, job=~"(.+/)?sandglass(-.+)?"} == 0) or vector(0)'), p.low(1, 2)),
    p.stat('Blind', 'How many agents have no process probe attached, and so see no sandbox?', 'none', p.now('count(sandglass_probe_attached{SEL, probe="exec"} == 0) or vector(0)'), p.low(1, 2)),
    p.stat('Incomplete traces', 'In how many traces were records lost, or the beginning not seen?', 'short', p.now('sum(increase(sandglass_traces_incomplete_total{SEL}[$__range]))'), p.low(1, 100)),
    p.stat('Spans undelivered', 'What share of spans did not reach the collector?', 'percentunit', p.now('sum(increase(sandglass_export_spans_total{SEL, outcome!="delivered"}[$__range])) / sum(increase(sandglass_export_spans_total{SEL}[$__range]))'), p.low(0.001, 0.01)),
    p.stat('Versions', 'Do all agents run the same version?', 'none', p.now('count(count by (version) (sandglass_build_info{SEL}))'), p.low(2, 3)),
  ]),
  p.row('What it sees', [
    p.lines('Events', 'How much happens on the nodes?', 'ops', [p.query('topk(10, %s)' % rate('sandglass_events_total', 'node'), '{{node}}')]) + p.byNode,
    p.lines('Losses', 'Which of the six ways to miss something occurs: lost, limited, late, orphan, evicted, shed?', 'ops', [
      p.query(rate('sandglass_events_lost_total', 'probe'), 'lost, {{probe}}'),
      p.query(rate('sandglass_events_limited_total', 'probe'), 'limited, {{probe}}'),
      p.query('sum(rate(sandglass_events_late_total{SEL}[$__rate_interval]))', 'late'),
      p.query('sum(rate(sandglass_events_orphan_total{SEL}[$__rate_interval]))', 'orphan'),
      p.query(rate('sandglass_evicted_total', 'table, owner'), 'evicted, {{table}}, {{owner}}'),
      p.query(rate('sandglass_shed_total', 'sink'), 'shed, {{sink}}'),
    ]),
    p.lines('Limited on purpose', 'Is somebody held to a share: records left out, own entries evicted, false plugins refused?', 'ops', [
      p.query(rate('sandglass_events_limited_total', 'probe'), 'limited, {{probe}}'),
      p.query(rate('sandglass_evicted_total', 'table', ', owner="noisy"'), 'evicted of a noisy owner, {{table}}'),
      p.query('sum by (claim, reason) (rate(sandglass_untrusted_processes_total{SEL}[$__rate_interval]))', 'refused {{claim}}, {{reason}}'),
    ]),
    p.lines('Losses by node', 'Which node loses events?', 'ops', [p.query('topk(10, %s)' % rate('sandglass_events_lost_total', 'node'), '{{node}}')]) + p.byNode,
    p.lines('Undecodable records', 'Are there records that the agent does not understand?', 'ops', [p.query(rate('sandglass_events_undecodable_total', 'probe'), '{{probe}}')]),
    p.lines('Incomplete traces by node', 'Which node has traces with gaps?', 'ops', [p.query('topk(10, %s)' % rate('sandglass_traces_incomplete_total', 'node'), '{{node}}')]) + p.byNode,
    p.lines('Hooks', 'Which hook does each probe use, on how many nodes?', 'none', [p.query('sum by (probe, hook) (sandglass_probe_info{SEL})', '{{probe}} {{hook}}')]),
  ]),
  p.row('Its configuration', [
    p.lines('Configurations', 'How many agents have which configuration?', 'none', [p.query('count_values("hash", sandglass_config_hash{SEL})', '{{hash}}')]),
    p.lines('Refused', 'Which node refuses its configuration file and keeps an older one?', 'none', [p.query('topk(10, max by (node) (1 - sandglass_config_last_reload_successful{SEL}))', '{{node}}')]) + p.byNode,
    p.lines('Keys that need a restart', 'Which changed keys take effect at the next start only, on how many nodes?', 'none', [p.query('sum by (key) (sandglass_config_needs_restart{SEL})', '{{key}}')]),
    p.lines('Age of the configuration', 'When did a node load its configuration?', 's', [p.query('topk(10, max by (node) (time() - sandglass_config_last_reload_success_timestamp_seconds{SEL}))', '{{node}}')]) + p.byNode,
  ]),
  p.row('How full it is', [
    p.lines('Queue', 'Do events wait for the correlator?', 'none', [p.query('topk(10, max by (node) (sandglass_queue_depth{SEL}))', '{{node}}')]) + p.byNode,
    p.lines('Ring buffer', 'How much waits in the kernel for the agent?', 'bytes', [p.query('topk(10, max by (node) (sandglass_ring_used_bytes{SEL}))', '{{node}}')]) + p.byNode,
    p.lines('Open traces', 'How many traces are open?', 'none', [p.query('topk(10, max by (node) (sandglass_open_traces{SEL}))', '{{node}}')]) + p.byNode,
    p.lines('Identity questions', 'Does the runtime answer who owns a sandbox?', 'ops', [p.query(rate('sandglass_identity_questions_total', 'outcome'), '{{outcome}}')]),
  ]),
  p.row('What it delivers', [
    p.lines('Spans', 'Where do spans end?', 'ops', [p.query(rate('sandglass_export_spans_total', 'outcome'), '{{outcome}}')]),
    p.lines('Spans waiting', 'How many spans wait for the collector?', 'none', [p.query('topk(10, max by (node) (sandglass_export_queue_spans{SEL}))', '{{node}}')]) + p.byNode,
    p.lines('Oldest request', 'For how long has the oldest request been waiting for the collector?', 's', [p.query('topk(10, max by (node) (time() - (sandglass_export_queue_oldest_timestamp_seconds{SEL} > 0)))', '{{node}}')]) + p.byNode,
    p.lines('Bytes waiting', 'How near is the queue to its limit, beyond which the oldest spans go?', 'bytes', [p.query('topk(10, max by (node) (sandglass_export_queue_bytes{SEL}))', '{{node}}')]) + p.byNode,
    p.lines('Request duration', 'How long does the collector take to answer?', 's', p.quantiles('sandglass_export_request_duration_seconds_bucket{SEL}', false)),
    p.lines('Interrupted', 'How many traces did a killed agent leave to the next one: open ones, and closed ones that were in no request?', 'none', [
      p.query('sum(increase(sandglass_journal_interrupted_traces_total{SEL}[$__rate_interval]))', 'interrupted'),
      p.query('sum(increase(sandglass_journal_unsent_traces_total{SEL}[$__rate_interval]))', 'in no request'),
    ]),
    p.lines('Requests repeated', 'How often must a request be sent again?', 'ops', [p.query(rate('sandglass_export_retries_total', 'node'), '{{node}}')]) + p.byNode,
  ]),
  p.row('What it costs', [
    p.lines('Processor', 'How many cores does an agent use?', 'short', [p.query('topk(10, %s)' % rate('sandglass_process_cpu_seconds_total', 'node'), '{{node}}')]) + p.byNode,
    p.lines('Memory', 'How much memory does an agent hold?', 'bytes', [p.query('topk(10, max by (node) (sandglass_process_resident_memory_bytes{SEL}))', '{{node}}')]) + p.byNode,
    p.lines('Files', 'How many files does an agent hold open?', 'none', [p.query('topk(10, max by (node) (sandglass_process_open_fds{SEL}))', '{{node}}')]) + p.byNode,
  ]),
])
