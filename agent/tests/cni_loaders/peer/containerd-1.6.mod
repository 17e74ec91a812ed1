// containerd 1.6; CRI-O 1.25 to 1.28.
module sandglass.test/loaders

go 1.21

require (
	github.com/containerd/go-cni v1.1.6
	github.com/containernetworking/cni v1.1.1
	github.com/cri-o/ocicni v0.4.0
	github.com/sirupsen/logrus v1.8.1
)

require (
	github.com/containernetworking/plugins v1.1.1 // indirect
	github.com/fsnotify/fsnotify v1.5.4 // indirect
	github.com/vishvananda/netlink v1.1.1-0.20210811191823-e1a867c6b452 // indirect
	github.com/vishvananda/netns v0.0.0-20210104183010-2eb08e3e575f // indirect
	golang.org/x/sys v0.0.0-20220412211240-33da011f77ad // indirect
)
