// All dashboards, one file each: jsonnet -m ../grafana dashboards.jsonnet
{
  'fleet.json': import 'fleet.libsonnet',
  'node.json': import 'node.libsonnet',
  'dns.json': import 'dns.libsonnet',
  'windows.json': import 'windows.libsonnet',
  'agent.json': import 'agent.libsonnet',
}
