// Package config contains the manifests that a cluster needs before the manager runs: custom resource definitions,
// roles and policies. They are compiled into the program.
package config

import "embed"

// Files contains the manifests by their paths in this directory: crd/*.yaml with one CustomResourceDefinition each,
// rbac/*.yaml, policy/*.yaml, local/*.yaml, which binds the roles in local mode, and full/*.yaml for its full
// guests.
//
//go:embed crd/*.yaml rbac/*.yaml policy/*.yaml local/*.yaml full/*.yaml
var Files embed.FS
