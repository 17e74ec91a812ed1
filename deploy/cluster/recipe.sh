# What Kubernetes and etcd are built from, besides the modules in kube/ and etcd/. Sourced by build.sh. The programs' folder in
# the cache is named by the hash of this file and of those modules, without lines of comments (scripts/places.sh): what
# changes the programs belongs here, and everything else in build.sh.
kubernetes_version=v1.36.3
version_package=k8s.io/component-base/version
kubernetes_flags="-s -w -X $version_package.gitVersion=$kubernetes_version -X $version_package.gitMajor=1 -X $version_package.gitMinor=36"
etcd_package=go.etcd.io/etcd/server/v3
export GOWORK=off GOFLAGS='' CGO_ENABLED=1
