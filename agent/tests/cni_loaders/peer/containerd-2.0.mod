// containerd 2.0; CRI-O 1.31 and 1.32.
module sandglass.test/loaders

go 1.21

require (
	github.com/containerd/go-cni v1.1.12
	github.com/containernetworking/cni v1.2.3
	github.com/cri-o/ocicni v0.4.3
	github.com/sirupsen/logrus v1.9.3
)

require (
	github.com/containernetworking/plugins v1.4.1 // indirect
	github.com/fsnotify/fsnotify v1.7.0 // indirect
	github.com/vishvananda/netlink v1.2.1-beta.2 // indirect
	github.com/vishvananda/netns v0.0.4 // indirect
	golang.org/x/sys v0.20.0 // indirect
)
