// containerd 1.5.
module sandglass.test/loaders

go 1.21

require (
	github.com/containerd/go-cni v1.0.2
	github.com/containernetworking/cni v0.8.1
)

require github.com/pkg/errors v0.9.1 // indirect
