// Package config holds the manifests that a cluster needs before the manager runs: custom resource
// definitions and roles, compiled into the program.
package config

import "embed"

// Files holds the manifests under their paths in this folder: crd/*.yaml, one
// CustomResourceDefinition each, rbac/*.yaml, policy/*.yaml, and local/*.yaml, which
// binds the roles in local mode.
//
//go:embed crd/*.yaml rbac/*.yaml policy/*.yaml local/*.yaml
var Files embed.FS
