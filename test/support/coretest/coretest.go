// Package coretest installs placeholder CRDs for the kinds of Cluster API, for tests that only need the kinds to
// be served.
package coretest

import (
	"embed"
	"io/fs"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
)

//go:embed crd/*.yaml
var files embed.FS

// Install makes an API server serve Machines and Clusters in both versions, with arbitrary fields and without a
// status subresource. It may be called repeatedly.
func Install(t testing.TB, config *rest.Config) {
	t.Helper()
	crds, err := fs.Sub(files, "crd")
	if err != nil {
		t.Fatal(err)
	}
	if err := controlplane.InstallCRDs(t.Context(), config, crds); err != nil {
		t.Fatal(err)
	}
}
