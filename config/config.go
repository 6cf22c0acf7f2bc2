// Package config changes with the manifests that a cluster needs before the manager
// runs: custom resource definitions and roles. It carries them inside the program.
package config

import "embed"

// Files holds the manifests under their paths in this folder: crd/*.yaml, one
// CustomResourceDefinition each, and rbac/*.yaml.
//
//go:embed crd/*.yaml rbac/*.yaml
var Files embed.FS
