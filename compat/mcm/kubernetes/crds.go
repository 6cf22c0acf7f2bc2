// Package kubernetes holds the CRDs of machine.sapcloud.io, at the place where MCM has them.
package kubernetes

import "embed"

// CRDs has one file for each kind, in the folder crds.
//
//go:embed crds/*.yaml
var CRDs embed.FS
