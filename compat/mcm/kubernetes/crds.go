// Package kubernetes contains the CRDs of machine.sapcloud.io, at the same place as in MCM.
package kubernetes

import "embed"

// CRDs contains one file per kind, in the directory crds.
//
//go:embed crds/*.yaml
var CRDs embed.FS
