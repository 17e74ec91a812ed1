// The building blocks of the dashboards: queries, panels, variables, layout. Used by every dashboard beside it.
//
// A panel is written as its title, the question it answers, its unit and its queries; what Grafana wants to know besides
// stands here, once. `SEL` in a query stands for the selection by cluster, job and node that every query has.
// Does not: name a metric.
local sel = 'cluster=~"$cluster", job=~"$job", node=~"$node"';
local datasource = { type: 'prometheus', uid: '${prometheus_datasource}' };

local explore(pane) =
  '/explore?schemaVersion=1&orgId=1&panes=' +
  std.strReplace(std.strReplace(std.strReplace(std.strReplace(
    std.manifestJsonMinified({ t: pane { range: { from: '${__from}', to: '${__to}' } } }),
    '"',
    '%22'
  ), ' ', '%20'), '&', '%26'), '=', '%3D');

// Where the traces behind a number are: a search in Jaeger or Tempo for sandglass' spans of the same time.
local jaeger(tags, minDuration='') = explore({
  datasource: '${jaeger_datasource}',
  queries: [{ refId: 'A', queryType: 'search', service: 'sandglass', tags: tags, minDuration: minDuration, limit: 50 }],
});
local tempo(condition) = explore({
  datasource: '${tempo_datasource}',
  queries: [{ refId: 'A', queryType: 'traceql', limit: 50, query: '{resource.service.name="sandglass" && ' + condition + '}' }],
});

{
  // A query; `exemplar` requests the trace ids at the buckets.
  query(expr, legend, exemplar=false):: {
    datasource: datasource,
    expr: std.strReplace(expr, 'SEL', sel),
    legendFormat: legend,
    exemplar: exemplar,
    range: true,
    instant: false,
    editorMode: 'code',
  },
  // A query for the present, or for the whole time that is shown.
  now(expr, legend=''):: self.query(expr, legend) + { range: false, instant: true },
  column(expr, name):: self.now(expr, name) + { format: 'table' },

  // p50, p95 and p99 of a histogram.
  quantiles(selector, exemplar=true):: [
    self.query('histogram_quantile(%s, sum by (le) (rate(%s[$__rate_interval])))' % [q, selector], 'p' + std.substr(q + '0', 2, 2), exemplar && q == '0.99')
    for q in ['0.5', '0.95', '0.99']
  ],
  p99By(selector, label, most=10):: self.query(
    'topk(%d, histogram_quantile(0.99, sum by (le, %s) (rate(%s[$__rate_interval]))))' % [most, label, selector],
    '{{' + std.strReplace(label, ', ', '}} {{') + '}}',
    true
  ),

  local panel(type, title, question, unit, targets, width, height) = {
    type: type,
    title: title,
    description: question,
    datasource: datasource,
    gridPos: { w: width, h: height },
    targets: [targets[i] { refId: std.char(65 + i) } for i in std.range(0, std.length(targets) - 1)],
    fieldConfig: { defaults: { unit: unit }, overrides: [] },
    links: [],
  },

  lines(title, question, unit, targets, width=12, height=8, max=null, stack=false):: panel('timeseries', title, question, unit, targets, width, height) + {
    fieldConfig+: { defaults+: {
      min: 0,
      [if max != null then 'max']: max,
      color: { mode: 'palette-classic' },
      custom: {
        drawStyle: 'line',
        lineWidth: 1,
        fillOpacity: if stack then 40 else 8,
        showPoints: 'never',
        spanNulls: false,
        [if stack then 'stacking']: { mode: 'normal', group: 'A' },
      },
    } },
    options: {
      legend: { displayMode: 'table', placement: 'right', showLegend: true, calcs: ['lastNotNull', 'max'] },
      tooltip: { mode: 'multi', sort: 'desc' },
    },
  },

  // Lines of nodes lead to the traces of the node they stand for, and to its dashboard.
  byNode:: { fieldConfig+: { defaults+: { links: [
    // Only title, url and targetBlank mean something for a data link; Grafana's schema wants the rest as well.
    { title: link[0], url: link[1], targetBlank: true, type: 'link', icon: '', tooltip: '', tags: [], asDropdown: false, includeVars: false, keepTime: false }
    for link in [
      ['Traces of ${__field.labels.node} in Jaeger', jaeger('k8s.node.name=${__field.labels.node}')],
      ['Traces of ${__field.labels.node} in Tempo', tempo('resource.k8s.node.name="${__field.labels.node}"')],
      ['Node ${__field.labels.node}', '/d/sandglass-node?var-node=${__field.labels.node}&${prometheus_datasource:queryparam}&${__url_time_range}'],
    ]
  ] } } },

  stat(title, question, unit, target, steps=[[null, 'text']], width=4, height=4):: panel('stat', title, question, unit, [target], width, height) + {
    fieldConfig+: { defaults+: {
      color: { mode: 'thresholds' },
      thresholds: { mode: 'absolute', steps: [{ value: step[0], color: step[1] } for step in steps] },
    } },
    options: {
      graphMode: 'none',
      colorMode: 'value',
      justifyMode: 'auto',
      textMode: 'auto',
      wideLayout: true,
      showPercentChange: false,
      percentChangeColorMode: 'standard',
      orientation: 'auto',
      reduceOptions: { calcs: ['lastNotNull'], fields: '', values: false },
    },
  },
  // Good is low.
  low(warn, bad):: [[null, 'green'], [warn, 'orange'], [bad, 'red']],
  // Good is high.
  high(warn, good):: [[null, 'red'], [warn, 'orange'], [good, 'green']],

  heat(title, question, selector, width=12, height=8):: panel('heatmap', title, question, 's', [
    $.query('sum by (le) (increase(%s[$__rate_interval]))' % selector, '{{le}}', true) + { format: 'heatmap' },
  ], width, height) + {
    options: {
      calculate: false,
      cellValues: { unit: 'short' },
      cellGap: 1,
      color: { mode: 'scheme', scheme: 'Oranges', exponent: 0.5, steps: 64, reverse: false, fill: 'dark-orange', scale: 'exponential' },
      exemplars: { color: 'rgba(255,0,255,0.7)' },
      filterValues: { le: 1e-9 },
      legend: { show: true },
      rowsFrame: { layout: 'auto' },
      showValue: 'never',
      tooltip: { mode: 'single', yHistogram: true, showColorScale: false },
      yAxis: { axisPlacement: 'left', unit: 's', reverse: false },
    },
  },

  // A table with one row a label set and one column a query. `units` gives the unit of each column.
  table(title, question, columns, hidden=[], sort='p99', width=24, height=8):: panel('table', title, question, 's', [column.target for column in columns], width, height) + {
    fieldConfig+: { overrides: [
      {
        matcher: { id: 'byName', options: column.name },
        properties: [{ id: 'unit', value: column.unit }],
      }
      for column in columns
    ] },
    transformations: [
      { id: 'merge', options: {} },
      { id: 'organize', options: {
        excludeByName: { Time: true } + { [name]: true for name in hidden },
        renameByName: { ['Value #' + std.char(65 + i)]: columns[i].name for i in std.range(0, std.length(columns) - 1) },
        indexByName: {},
      } },
    ],
    options: { frameIndex: 0, showHeader: true, cellHeight: 'sm', sortBy: [{ displayName: sort, desc: true }] },
  },
  col(name, unit, expr):: { name: name, unit: unit, target: $.column(expr, name) },

  row(title, panels):: { row: title, panels: panels },

  local variable(name, label, query, more={}) = {
    type: 'query',
    name: name,
    label: label,
    datasource: datasource,
    query: query,
    definition: query,
    refresh: 2,
    sort: 1,
    multi: true,
    includeAll: true,
    allValue: '.+',
    current: { text: 'All', value: '$__all' },
    hide: 0,
  } + more,
  local chosen(kind, label) = {
    type: 'datasource',
    name: kind + '_datasource',
    label: label + ' data source',
    query: kind,
    regex: '',
    refresh: 1,
    multi: false,
    includeAll: false,
    hide: 0,
  },

  // Places panels from left to right, rows below each other, and numbers them.
  local place(rows) =
    local flow(state, panel) =
      local wraps = state.x + panel.gridPos.w > 24;
      local x = if wraps then 0 else state.x;
      local y = if wraps then state.y + state.h else state.y;
      local h = if wraps then panel.gridPos.h else std.max(state.h, panel.gridPos.h);
      state {
        x: x + panel.gridPos.w,
        y: y,
        h: h,
        id: state.id + 1,
        out: state.out + [panel { id: state.id, gridPos+: { x: x, y: y } }],
      };
    local add(state, row) =
      local header = {
        type: 'row',
        title: row.row,
        id: state.id,
        collapsed: false,
        gridPos: { x: 0, y: state.y + state.h, w: 24, h: 1 },
        panels: [],
      };
      std.foldl(flow, row.panels, state { x: 0, y: state.y + state.h + 1, h: 0, id: state.id + 1, out: state.out + [header] });
    std.foldl(add, rows, { x: 0, y: 0, h: 0, id: 1, out: [] }).out,

  dashboard(uid, title, description, rows):: {
    uid: 'sandglass-' + uid,
    title: 'sandglass / ' + title,
    description: description,
    tags: ['sandglass'],
    schemaVersion: 39,
    version: 1,
    editable: false,
    graphTooltip: 1,
    timezone: 'browser',
    refresh: '1m',
    time: { from: 'now-3h', to: 'now' },
    timepicker: {},
    annotations: { list: [
      {
        name: 'Alerts',
        datasource: datasource,
        enable: true,
        hide: false,
        iconColor: 'red',
        expr: 'ALERTS{alertname=~"Sandglass.+", alertstate="firing", cluster=~"$cluster", node=~"$node"}',
        titleFormat: '{{alertname}}',
        textFormat: '{{node}}',
        tagKeys: 'severity',
      },
    ] },
    links: [
      {
        title: 'sandglass',
        type: 'dashboards',
        tags: ['sandglass'],
        asDropdown: true,
        includeVars: true,
        keepTime: true,
        icon: 'external link',
        tooltip: 'The other dashboards',
        targetBlank: false,
        url: '',
      },
    ] + [
      {
        title: link[0],
        type: 'link',
        url: link[1],
        icon: 'external link',
        tooltip: link[2],
        tags: [],
        asDropdown: false,
        includeVars: false,
        keepTime: false,
        targetBlank: true,
      }
      for link in [
        ['Slow in Jaeger', jaeger('', '2s'), 'Traces of 2 s and more'],
        ['Failed in Jaeger', jaeger('error.type=sandbox_failed'), 'Sandboxes that failed'],
        ['Slow in Tempo', tempo('trace:duration > 2s'), 'Traces of 2 s and more'],
        ['Failed in Tempo', tempo('status = error'), 'Traces with an error'],
      ]
    ],
    templating: { list: [
      chosen('prometheus', 'Prometheus'),
      chosen('jaeger', 'Jaeger'),
      chosen('tempo', 'Tempo'),
      // `.*` also selects series without the label: most set-ups have one cluster and do not name it.
      variable('cluster', 'Cluster', 'label_values(sandglass_build_info, cluster)', { allValue: '.*' }),
      variable('job', 'Job', 'label_values(sandglass_build_info{cluster=~"$cluster"}, job)'),
      variable('node', 'Node', 'label_values(sandglass_build_info{cluster=~"$cluster", job=~"$job"}, node)'),
    ] },
    panels: place(rows),
  },
}
