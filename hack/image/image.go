package main

import (
	"fmt"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Where things are in the image. Go, like most, looks for the roots there.
const (
	programPath = "usr/bin/millwright"
	rootsPath   = "etc/ssl/certs/ca-certificates.crt"
)

// user is numeric, so that Kubernetes can check that it is not root.
const user = "65532:65532"

// about has the metadata of an image.
type about struct {
	version string
	// revision is the commit that the programs were built from; empty if unknown.
	revision string
	created  time.Time
}

// program is a program for a platform.
type program struct {
	platform v1.Platform
	path     string
}

// labels returns the annotations that the OCI image specification defines.
func (a about) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       "Millwright",
		"org.opencontainers.image.description": "Machine manager for Kubernetes",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/millwright-dev/millwright",
		"org.opencontainers.image.version":     a.version,
		"org.opencontainers.image.created":     a.created.Format(time.RFC3339),
	}
	if a.revision != "" {
		labels["org.opencontainers.image.revision"] = a.revision
	}
	return labels
}

// indexOf returns the image for the platforms of programs, in their order. It depends only on its
// arguments and the files of the programs.
func indexOf(a about, programs []program) (v1.ImageIndex, error) {
	authorities, err := roots()
	if err != nil {
		return nil, err
	}
	// A separate layer, which rarely changes between releases.
	base, err := layerOf(file{path: rootsPath, mode: 0o644, content: authorities})
	if err != nil {
		return nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		image, err := imageOf(a, base, p)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", p.platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: plain{image}, Descriptor: v1.Descriptor{Platform: &p.platform}})
	}
	return mutate.Annotations(index, a.labels()).(v1.ImageIndex), nil
}

// plain is an image without an artifact type. The library would write the type into the index, and
// programs that drop the field would change the digest.
type plain struct{ v1.Image }

// ArtifactType returns no type.
func (plain) ArtifactType() (string, error) { return "", nil }

func imageOf(a about, base v1.Layer, p program) (v1.Image, error) {
	content, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	layer, err := layerOf(file{path: programPath, mode: 0o755, content: content})
	if err != nil {
		return nil, err
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS:           p.platform.OS,
		Architecture: p.platform.Architecture,
		Variant:      p.platform.Variant,
		Created:      v1.Time{Time: a.created},
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       user,
			Entrypoint: []string{"/" + programPath},
			Env:        []string{"PATH=/usr/bin"}, // for kubectl exec
			WorkingDir: "/",
			Labels:     a.labels(),
		},
	})
	if err != nil {
		return nil, err
	}
	image = mutate.ConfigMediaType(mutate.MediaType(image, types.OCIManifestSchema1), types.OCIConfigJSON)
	return mutate.Append(image,
		mutate.Addendum{Layer: base, History: a.history("root certificates")},
		mutate.Addendum{Layer: layer, History: a.history("millwright " + a.version)})
}

func (a about) history(what string) v1.History {
	return v1.History{Created: v1.Time{Time: a.created}, CreatedBy: "hack/image.sh", Comment: what}
}
