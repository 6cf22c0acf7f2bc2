// Package examples contains the examples for local clusters. They are compiled into the program.
package examples

import "embed"

// Files contains the manifests by their paths in this directory: *.yaml for the small guest, full/*.yaml for the full
// guest, and sim/*.yaml for simulated machines.
//
//go:embed *.yaml full/*.yaml sim/*.yaml
var Files embed.FS
