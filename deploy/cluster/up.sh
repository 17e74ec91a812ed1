#!/usr/bin/env bash
# Starts a one-node Kubernetes with all its state below FOLDER; down.sh ends it. Usage: up.sh BIN FOLDER. Root only.
# Bridges sgcp0 to sgcp3 (pods, 10.244.0.0/22) and sgcnode (the node, 10.244.255.1); Services 10.96.0.0/24, CoreDNS behind 10.96.0.10;
# kube-proxy with iptables. Kubelet and containerd export their spans to a Jaeger on the loopback address; a Prometheus, if
# installed, scrapes what targets.sh finds by the annotations of pods. Touches no other runtime and nothing in /etc.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "$1" && pwd)
mkdir -p "$2"
dir=$(cd "$2" && pwd)
readonly node=10.244.255.1
export PATH=$bin:$PATH:/usr/sbin:/sbin
export KUBECONFIG=$dir/admin.kubeconfig

if ss -ltnH '( sport = :6443 or sport = :2379 or sport = :4317 )' | grep -q .; then
    echo "error: port 6443, 2379 or 4317 is in use: another cluster or collector runs here" >&2
    echo "hint: end it with deploy/cluster/down.sh" >&2
    exit 1
fi
profiles=$(cd "$(dirname "$0")/../helm/sandglass/profiles" && pwd)
cd "$dir"
# Chains of a Kubernetes that was here before are not ours to remove.
if ! { iptables-save; ip6tables-save; } 2> /dev/null | grep -q '^:KUBE-'; then
    touch no-chains-before
fi
mkdir -p cni cni-slow cni-failing cni-broken etc etcd ipam kubelet log pki plugins root run state

# start NAME COMMAND..: in the background, with a log and a pid file.
start() {
    local name=$1
    shift
    setsid "$@" > "log/$name.log" 2>&1 < /dev/null &
    echo $! > "run/$name.pid"
}

# until_true SECONDS WHAT COMMAND..
until_true() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" > /dev/null 2>&1; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "error: $what did not come up" >&2
            tail -n 5 log/*.log >&2
            exit 1
        fi
        sleep 0.2
    done
}

cni_plugins() {
    local folder
    for folder in /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do
        [ ! -x "$folder/bridge" ] || break
    done
    # Copies: from inside a container a link leads nowhere.
    cp -L "$folder"/* plugins/
    cat > plugins/slow-policy << 'SH'
#!/bin/sh
# Passes the result on after a while; the wait is a file, so that a test can make it short. DEL fails while another is there.
# Where a folder is, it leaves there how long its own thread waited for a processor, nanoseconds.
node=$(dirname "$0")/..
read -r pause < "$node/slow-seconds"
if [ "$CNI_COMMAND" = DEL ] && [ -e "$node/fail-del" ]; then
    echo '{"cniVersion":"1.0.0","code":11,"msg":"the policy cannot be taken away now","details":""}'
    exit 1
fi
if [ "$CNI_COMMAND" = ADD ]; then
    sleep "$pause"
    # libcni writes the keys in order, on one line.
    sed -n 's/.*"prevResult":\(.*\),"type":.*/\1/p'
    if [ -d "$node/waited" ]; then
        read -r _ waited _ < /proc/$$/schedstat
        echo "$waited" > "$node/waited/$CNI_CONTAINERID"
    fi
fi
SH
    cat > plugins/strict-policy << 'SH'
#!/bin/sh
if [ "$CNI_COMMAND" = ADD ]; then
    echo '{"cniVersion":"1.0.0","code":112,"msg":"no policy allows this pod","details":""}'
    exit 1
fi
SH
    chmod +x plugins/slow-policy plugins/strict-policy
    echo 2 > slow-seconds
}

# conflist FOLDER PLUGIN NUMBER: a bridge of its own and one plugin after it.
conflist() {
    cat > "$1/10-node.conflist" << JSON
{"cniVersion": "1.0.0", "name": "$(basename "$1" | sed 's/^cni$/node/')", "plugins": [
  {"type": "bridge", "bridge": "sgcp$3", "isGateway": true, "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "$dir/ipam",
   "ranges": [[{"subnet": "10.244.$3.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  $2
]}
JSON
}

runtime() {
    # Without CAP_SYS_RESOURCE the runtime may not lower its own out-of-memory score.
    containerd config default | sed -e "s#/run/containerd/containerd.sock#$dir/run/containerd.sock#" \
        -e "s#^root = .*#root = '$dir/root'#" -e "s#^state = .*#state = '$dir/state'#" \
        -e "s#sandbox = '.*pause.*'#sandbox = 'docker.io/sandglass-test/pod:1'#" \
        -e 's#restrict_oom_score_adj = false#restrict_oom_score_adj = true#' \
        -e "s#'/opt/cni/bin'#'$dir/plugins'#" -e "s#'/etc/cni/net.d'#'$dir/cni'#" > etc/config.toml
    sed -i "/server.v1.metrics/,/address/s#address = ''#address = '127.0.0.1:1338'#" etc/config.toml
    for handler in slow failing broken; do
        cat >> etc/config.toml << TOML
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.$handler]
  runtime_type = 'io.containerd.runc.v2'
  sandboxer = 'podsandbox'
  cni_conf_dir = '$dir/cni-$handler'
  cni_max_conf_num = 1
TOML
    done
    # These names are read by every OpenTelemetry exporter: for this one process only.
    start containerd env OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf \
        OTEL_SERVICE_NAME=containerd OTEL_TRACES_SAMPLER=always_on OTEL_BSP_SCHEDULE_DELAY=500 \
        containerd -c etc/config.toml -a $dir/run/containerd.sock
    until_true 20 containerd ctr -a $dir/run/containerd.sock version
    for image in "$dir"/images/*.tar; do
        ctr -a $dir/run/containerd.sock -n k8s.io images import "$image" > /dev/null
    done
}

certificates() (
    cd pki
    openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=ca -days 30 2> /dev/null
    certificate() {
        openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2> /dev/null
        openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -out "$1.crt" -days 30 2> /dev/null \
            -extfile <(printf 'subjectAltName=DNS:localhost,DNS:kubernetes,IP:127.0.0.1,IP:10.96.0.1,IP:%s\nextendedKeyUsage=serverAuth,clientAuth\n' $node)
    }
    certificate api /CN=kube-apiserver
    certificate admin /O=system:masters/CN=admin
    certificate node /O=system:nodes/CN=system:node:n1
    openssl genrsa -out sa.key 2048 2> /dev/null
    openssl rsa -in sa.key -pubout -out sa.pub 2> /dev/null
    for user in admin node; do
        cat > ../$user.kubeconfig << YAML
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$node:6443", certificate-authority: $dir/pki/ca.crt}}]
users: [{name: u, user: {client-certificate: $dir/pki/$user.crt, client-key: $dir/pki/$user.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
YAML
    done
)

control_plane() {
    start etcd etcd --data-dir etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
    start kube-apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address $node --advertise-address $node \
        --secure-port 6443 --tls-cert-file pki/api.crt --tls-private-key-file pki/api.key --client-ca-file pki/ca.crt \
        --service-account-key-file pki/sa.pub --service-account-signing-key-file pki/sa.key \
        --service-account-issuer https://kubernetes.default.svc --service-cluster-ip-range 10.96.0.0/24 \
        --authorization-mode Node,RBAC --allow-privileged=true --kubelet-preferred-address-types InternalIP \
        --kubelet-client-certificate pki/admin.crt --kubelet-client-key pki/admin.key
    until_true 60 kube-apiserver kubectl get --raw /readyz
    start kube-controller-manager kube-controller-manager --kubeconfig admin.kubeconfig --leader-elect=false \
        --service-account-private-key-file pki/sa.key --root-ca-file pki/ca.crt --bind-address 127.0.0.1
    start kube-scheduler kube-scheduler --kubeconfig admin.kubeconfig --leader-elect=false --bind-address 127.0.0.1
}

node() {
    cat > kubelet.yaml << YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$dir/run/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
address: $node
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $dir/pki/ca.crt}}
authorization: {mode: AlwaysAllow}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
podLogsDir: $dir/log/pods
resolvConf: ""
tracing: {endpoint: "127.0.0.1:4317", samplingRatePerMillion: 1000000}
YAML
    # Where an administrator puts it (deploy/README.md); the default does not name it.
    mkdir -p kubelet/seccomp
    cp "$profiles/seccomp.json" kubelet/seccomp/sandglass.json
    start kubelet kubelet --config kubelet.yaml --kubeconfig node.kubeconfig --root-dir "$dir/kubelet" \
        --cert-dir "$dir/kubelet/pki" --hostname-override n1 --node-ip $node
    # masqueradeAll: pods share a bridge, so an answer would go round the node's translation without it.
    cat > kube-proxy.yaml << YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
iptables: {masqueradeAll: true}
clientConnection: {kubeconfig: $dir/admin.kubeconfig}
clusterCIDR: 10.244.0.0/16
hostnameOverride: n1
metricsBindAddress: 127.0.0.1:10249
healthzBindAddress: 127.0.0.1:10256
conntrack: {maxPerCore: 0}
YAML
    start kube-proxy kube-proxy --config kube-proxy.yaml
}

dns() {
    cat > Corefile << TEXT
cluster.local:5300 {
    bind $node
    kubernetes cluster.local {
        kubeconfig $dir/admin.kubeconfig
    }
}
TEXT
    start coredns coredns -conf Corefile
    kubectl apply -f - > /dev/null << YAML
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: dns, port: 53, protocol: UDP, targetPort: 5300}, {name: dns-tcp, port: 53, protocol: TCP, targetPort: 5300}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 5300, protocol: UDP}, {name: dns-tcp, port: 5300, protocol: TCP}]
endpoints: [{addresses: [$node]}]
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: slow}
handler: slow
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: failing}
handler: failing
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: broken}
handler: broken
YAML
}

# Jaeger from the example's own configuration, on the loopback address; metrics of its own on a port of its own.
tracing() {
    sed -n '/^  jaeger.yaml: |/,/^---/p' "$here/../examples/jaeger.yaml" | sed -e 1d -e '/^---/d' -e 's/^    //' \
        -e 's/0\.0\.0\.0/127.0.0.1/' > jaeger.yaml
    start jaeger jaeger --config jaeger.yaml
    until_true 20 Jaeger curl -sf http://127.0.0.1:16686/api/services
}

scraping() {
    command -v prometheus > /dev/null 2>&1 || return 0
    cat > prometheus.yaml << YAML
global: {scrape_interval: 2s, evaluation_interval: 2s}
rule_files: [$here/../../dashboards/rules/recording.yaml, $here/../../dashboards/rules/alerts.yaml]
scrape_configs:
  - job_name: sandglass
    file_sd_configs: [{files: [$dir/targets.json], refresh_interval: 2s}]
YAML
    start prometheus prometheus --config.file prometheus.yaml --storage.tsdb.path "$dir/prometheus" \
        --web.listen-address 127.0.0.1:9490 --enable-feature=exemplar-storage
}

# A node's mounts are shared, where systemd is the first process; here they may not be.
mount --bind "$dir" "$dir"
mount --make-shared "$dir"
cd "$dir"
ip link add sgcnode type bridge
ip addr add $node/32 dev sgcnode
ip link set sgcnode up
sysctl -qw net.ipv4.ip_forward=1
cni_plugins
conflist cni '{"type": "portmap", "capabilities": {"portMappings": true}}' 0
conflist cni-slow '{"type": "slow-policy"}' 1
conflist cni-failing '{"type": "strict-policy"}' 2
# A chain with a plugin that is not there.
conflist cni-broken '{"type": "no-such-plugin"}' 3
tracing
runtime
certificates
control_plane
node
dns
scraping
# What tests call goes through kube-proxy's rules: a flow that begins before they are there is never translated.
asks_dns() {
    python3 - << 'PY'
import socket
name = b"\x07default\x03svc\x07cluster\x05local\0"
ask = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ask.settimeout(1)
ask.sendto(b"\x5a\x5a\x01\0\0\x01\0\0\0\0\0\0\x0akubernetes" + name + b"\0\x01\0\x01", ("10.96.0.10", 53))
assert ask.recv(512).endswith(socket.inet_aton("10.96.0.1"))
PY
}
until_true 60 kube-proxy curl -sf http://127.0.0.1:10256/healthz
until_true 60 "CoreDNS behind its Service" asks_dns
until_true 60 "node n1" kubectl wait --for=condition=Ready node/n1 --timeout=1s
until_true 20 "the default service account" kubectl get serviceaccount default
