#!/usr/bin/env bash
# Installs the chart on the node that up.sh started, makes pods, prints where to look, and stays until Ctrl-C.
# Usage: demo.sh BIN FOLDER. Used by `make demo ARGS=--cluster`; `--once` in DEMO_ARGS ends after the pods are there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$1
dir=$2
export PATH=$bin:$PATH KUBECONFIG=$dir/admin.kubeconfig
readonly node=10.244.255.1

kubectl create namespace sandglass > /dev/null
kubectl label namespace sandglass pod-security.kubernetes.io/enforce=privileged > /dev/null
helm install sandglass "$here/../helm/sandglass" --namespace sandglass --wait --timeout 90s \
    --set image.repository=localhost/sandglass --set linux.cni.confDir="$dir/cni" --set linux.cni.binDir="$dir/plugins" --set linux.runtimeConfigDir="$dir/etc" \
    --set otlp.endpoint=http://127.0.0.1:4317 > /dev/null 2>&1
kubectl create namespace shop > /dev/null
until kubectl get serviceaccount default --namespace shop > /dev/null 2>&1; do sleep 0.2; done
kubectl apply --namespace shop --filename - > /dev/null << 'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 10
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: docker.io/sandglass-test/pod:1, imagePullPolicy: Never, args: [serve, "0.0.0.0:8080"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: slow-plugin}
spec:
  runtimeClassName: slow
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: docker.io/sandglass-test/pod:1, imagePullPolicy: Never}]
---
apiVersion: v1
kind: Pod
metadata: {name: refused-by-plugin}
spec:
  runtimeClassName: failing
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: docker.io/sandglass-test/pod:1, imagePullPolicy: Never}]
YAML
kubectl rollout status deployment/web --namespace shop --timeout=90s > /dev/null

"$here/targets.sh" "$bin" "$dir"
prometheus="not installed here"
[ ! -f "$dir/run/prometheus.pid" ] || prometheus=http://127.0.0.1:9490/
cat << TEXT

Ten pods, one with a slow plugin, one that a plugin refuses again and again:
  sandglass    http://127.0.0.1:9478/
  Jaeger       http://127.0.0.1:16686/  (query API: /api/traces?service=sandglass; kubelet and containerd share the traces)
  Prometheus   $prometheus
  kubectl      export KUBECONFIG=$KUBECONFIG PATH=$bin:\$PATH

TEXT
if [[ " ${DEMO_ARGS:-} " == *" --once "* ]]; then
    exit
fi
echo "Ctrl-C ends the node and removes $dir"
trap exit INT TERM
while sleep 1; do :; done
