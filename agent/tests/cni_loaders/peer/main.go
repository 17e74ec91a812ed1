// Loads CNI configuration directories with the loaders of the container runtimes, and prints what they loaded.
//
// Used by agent/tests/cni_loaders, which compares the agent's own judgement with it; built by scripts/peer.sh, once for
// each pair of go-cni (containerd) and ocicni (CRI-O) whose go.mod stands beside this file.
//
// Usage:
//
//	loaders load BIN_DIR      reads one case a line from standard input, prints one outcome a line
//	loaders corpus OUT_DIR    writes every JSON text of the modules' own sources and tests as a file of OUT_DIR
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	gocni "github.com/containerd/go-cni"
)

// One directory to load, and the settings of the runtimes that matter for what they take from it.
type testCase struct {
	Dir     string `json:"dir"`
	Max     int    `json:"max"`
	Default string `json:"default"`
}

type network struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Plugins []string `json:"plugins"`
}

type outcome struct {
	// What containerd's loader says when it loads nothing.
	Error    string    `json:"error"`
	Networks []network `json:"networks"`
	// What CRI-O would attach a pod to, and whether there is such a network.
	Default   string `json:"default"`
	Available bool   `json:"available"`
	HasCrio   bool   `json:"has_crio"`
}

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "load":
		err = load(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "corpus":
		err = corpus(os.Args[2])
	default:
		err = fmt.Errorf("usage: loaders load BIN_DIR | corpus OUT_DIR")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func load(binDir string) error {
	var cases []testCase
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one testCase
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return err
		}
		cases = append(cases, one)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	outcomes := make([]outcome, len(cases))
	next := make(chan int)
	var workers sync.WaitGroup
	for range [2]int{} {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for i := range next {
				containerd(cases[i], binDir, &outcomes[i])
				crio(cases[i], binDir, &outcomes[i])
			}
		}()
	}
	for i := range cases {
		next <- i
	}
	close(next)
	workers.Wait()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for i := range outcomes {
		if err := encoder.Encode(&outcomes[i]); err != nil {
			return err
		}
	}
	return nil
}

// As containerd's CRI plugin loads a directory, without the loopback network that it adds by itself.
func containerd(one testCase, binDir string, out *outcome) {
	// libcni 0.8 dereferences a nil pointer when a configuration is `null`.
	defer func() {
		if panicked := recover(); panicked != nil {
			out.Error = fmt.Sprint("panic: ", panicked)
		}
	}()
	loader, err := gocni.New(
		gocni.WithMinNetworkCount(1),
		gocni.WithPluginConfDir(one.Dir),
		gocni.WithPluginMaxConfNum(one.Max),
		gocni.WithPluginDir([]string{binDir}),
	)
	if err == nil {
		err = loader.Load(gocni.WithDefaultConf)
	}
	if err != nil {
		out.Error = err.Error()
		return
	}
	for _, loaded := range loader.GetConfig().Networks {
		plugins := []string{}
		for _, plugin := range loaded.Config.Plugins {
			plugins = append(plugins, plugin.Network.Type)
		}
		out.Networks = append(out.Networks, network{loaded.Config.Name, loaded.Config.CNIVersion, plugins})
	}
}
