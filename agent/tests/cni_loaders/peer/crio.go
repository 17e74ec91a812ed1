//go:build !nocrio

package main

import (
	"io"

	"github.com/cri-o/ocicni/pkg/ocicni"
	"github.com/sirupsen/logrus"
)

func init() {
	logrus.SetOutput(io.Discard)
}

// As CRI-O loads a directory when it starts. The plugins in binDir are run for their versions.
func crio(one testCase, binDir string, out *outcome) {
	plugin, err := ocicni.InitCNINoInotify(one.Default, one.Dir, one.Dir+"/cache", binDir)
	if err != nil {
		panic(err)
	}
	out.HasCrio = true
	out.Default = plugin.GetDefaultNetworkName()
	out.Available = plugin.Status() == nil
}
