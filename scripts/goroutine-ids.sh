#!/usr/bin/env bash
# Prints where Go's `runtime.g` has `goid` and `parentGoid`, by the type information of a program that each version of Go builds. The agent
# has these places in agent/src/sources/linux/exec/goroutines.rs and probes/bpf/goroutine.h: run this for a new version of Go.
# Usage: scripts/goroutine-ids.sh VERSION.., such as 1.25.5 1.26.0. Needs Go 1.21 or newer, which fetches the others.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: $0 VERSION.." >&2; exit 64; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
cat > go.mod << 'GO'
module ids

go 1.20
GO
cat > main.go << 'GO'
package main

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"log"
	"runtime"
)

func main() {
	file, err := elf.Open("/proc/self/exe")
	if err != nil {
		log.Fatal(err)
	}
	data, err := file.DWARF()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(runtime.Version())
	for reader := data.Reader(); ; {
		entry, err := reader.Next()
		if err != nil || entry == nil {
			log.Fatal("no type runtime.g: ", err)
		}
		if entry.Tag != dwarf.TagStructType || entry.Val(dwarf.AttrName) != "runtime.g" {
			continue
		}
		found, err := data.Type(entry.Offset)
		if err != nil {
			log.Fatal(err)
		}
		for _, field := range found.(*dwarf.StructType).Field {
			if field.Name == "goid" || field.Name == "parentGoid" {
				fmt.Print(" ", field.Name, " ", field.ByteOffset)
			}
		}
		fmt.Println()
		return
	}
}
GO
for version in "$@"; do
    GOTOOLCHAIN=go$version go build -o ids .
    ./ids
done
