// Command push pushes files of a release page to a registry: images as archives of OCI layouts, and Helm charts. It uses
// the credentials that a login of Docker, Podman or crane has saved.
//
//	push FILE REFERENCE [FILE REFERENCE...]
package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Media types of a chart, which Helm defines.
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "push:", err)
		os.Exit(1)
	}
}

// run pushes each file, and prints its reference with the digest.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 || len(args)%2 != 0 {
		return errors.New("pairs of a file and a reference are required")
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for ; len(args) > 0; args = args[2:] {
		tag, err := name.NewTag(args[1])
		if err != nil {
			return err
		}
		push := pushImage
		if strings.HasSuffix(args[0], ".tgz") {
			push = pushChart
		}
		digest, err := push(args[0], tag, options)
		if err != nil {
			return fmt.Errorf("cannot push %s to %s: %w", args[0], tag, err)
		}
		if _, err := fmt.Fprintf(stdout, "%s@%s\n", tag, digest); err != nil {
			return err
		}
	}
	return nil
}

// pushImage pushes the only image of a layout, and returns its digest.
func pushImage(file string, tag name.Tag, options []remote.Option) (v1.Hash, error) {
	scratch, err := os.MkdirTemp("", "push")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(scratch)
	if err := unpack(file, scratch); err != nil {
		return v1.Hash{}, err
	}
	all, err := layout.ImageIndexFromPath(scratch)
	if err != nil {
		return v1.Hash{}, err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	if len(manifest.Manifests) != 1 {
		return v1.Hash{}, fmt.Errorf("the layout has %d images instead of one", len(manifest.Manifests))
	}
	digest := manifest.Manifests[0].Digest
	index, err := all.ImageIndex(digest)
	if err != nil {
		return v1.Hash{}, err
	}
	return digest, remote.WriteIndex(tag, index, options...)
}

// unpack writes the files of an archive below a directory, from which none can escape.
func unpack(file, directory string) error {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return err
	}
	defer root.Close()
	return eachFile(file, func(name string, content io.Reader) error {
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		to, err := root.Create(name)
		if err != nil {
			return err
		}
		_, err = io.Copy(to, content)
		return errors.Join(err, to.Close())
	})
}

// eachFile calls use with the name and the content of each regular file in an archive.
func eachFile(file string, use func(name string, content io.Reader) error) error {
	packed, err := os.Open(file)
	if err != nil {
		return err
	}
	defer packed.Close()
	unzipped, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	archive := tar.NewReader(unzipped)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := use(path.Clean(header.Name), archive); err != nil {
			return err
		}
	}
}

// manifest is a manifest that remote.Put writes as it is.
type manifest []byte

func (m manifest) RawManifest() ([]byte, error)      { return m, nil }
func (manifest) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// pushChart pushes a chart in the format of "helm push", and returns the digest of its manifest.
func pushChart(file string, tag name.Tag, options []remote.Option) (v1.Hash, error) {
	metadata, err := readMetadata(file)
	if err != nil {
		return v1.Hash{}, err
	}
	chart, err := os.ReadFile(file)
	if err != nil {
		return v1.Hash{}, err
	}
	parts := map[types.MediaType][]byte{chartConfig: metadata, chartContent: chart}
	written := map[types.MediaType]v1.Descriptor{}
	for kind, content := range parts {
		blob := static.NewLayer(content, kind)
		if err := remote.WriteLayer(tag.Repository, blob, options...); err != nil {
			return v1.Hash{}, err
		}
		digest, err := blob.Digest()
		if err != nil {
			return v1.Hash{}, err
		}
		written[kind] = v1.Descriptor{MediaType: kind, Size: int64(len(content)), Digest: digest}
	}
	text, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: written[chartConfig], Layers: []v1.Descriptor{written[chartContent]},
	})
	if err != nil {
		return v1.Hash{}, err
	}
	digest, _, err := v1.SHA256(strings.NewReader(string(text)))
	if err != nil {
		return v1.Hash{}, err
	}
	return digest, remote.Put(tag, manifest(text), options...)
}

// readMetadata returns the Chart.yaml of a chart as JSON.
func readMetadata(file string) ([]byte, error) {
	var found []byte
	err := eachFile(file, func(name string, content io.Reader) error {
		if directory, base := path.Split(name); base != "Chart.yaml" || strings.Count(directory, "/") != 1 {
			return nil // of a subchart, or another file
		}
		text, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		found, err = yaml.YAMLToJSON(text)
		return err
	})
	if err == nil && found == nil {
		err = errors.New("the chart has no Chart.yaml")
	}
	return found, err
}
