package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// Writes every text of the modules' Go sources and every file of theirs that looks like a JSON object, each once. Verbs of
// fmt stay in it: a loader has an answer to such a text as well.
func corpus(outDir string) error {
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fmt.Errorf("no build information")
	}
	seen := map[string]bool{}
	keep := func(text []byte) error {
		trimmed := bytes.TrimSpace(text)
		if !bytes.HasPrefix(trimmed, []byte("{")) || seen[string(text)] || len(text) > 1<<16 {
			return nil
		}
		seen[string(text)] = true
		return os.WriteFile(filepath.Join(outDir, fmt.Sprintf("%04d", len(seen))), text, 0o644)
	}
	for _, module := range info.Deps {
		switch module.Path {
		case "github.com/containernetworking/cni", "github.com/containernetworking/plugins",
			"github.com/containerd/go-cni", "github.com/cri-o/ocicni":
		default:
			continue
		}
		root := filepath.Join(strings.TrimSpace(string(cache)), module.Path+"@"+module.Version)
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			switch filepath.Ext(path) {
			case ".go":
				return texts(path, keep)
			case ".conf", ".conflist", ".json":
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return keep(content)
			case ".md":
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return blocks(content, keep)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(len(seen))
}

// String literals of a Go file.
func texts(path string, keep func([]byte) error) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return nil
	}
	var failed error
	ast.Inspect(file, func(node ast.Node) bool {
		literal, ok := node.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING || failed != nil {
			return true
		}
		if text, err := strconv.Unquote(literal.Value); err == nil {
			failed = keep([]byte(text))
		}
		return true
	})
	return failed
}

// Fenced code blocks of a Markdown file.
func blocks(content []byte, keep func([]byte) error) error {
	for i, part := range strings.Split(string(content), "```") {
		if i%2 == 0 {
			continue
		}
		_, code, _ := strings.Cut(part, "\n")
		if err := keep([]byte(code)); err != nil {
			return err
		}
	}
	return nil
}
