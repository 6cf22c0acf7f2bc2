package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Paths in the image. Go, like most programs, looks for root certificates there.
const (
	programPath = "usr/bin/millwright"
	rootsPath   = "etc/ssl/certs/ca-certificates.crt"
)

// user is numeric, so that Kubernetes can check that it is not root.
const user = "65532:65532"

// about contains the metadata of an image.
type about struct {
	version string
	// revision is the commit of the programs' sources. It is empty if unknown.
	revision string
	created  time.Time
	// base is the directory with the files of hypervisors. It is empty for the manager's image.
	base string
}

// program is a program for a platform.
type program struct {
	platform v1.Platform
	path     string
}

// labels returns the annotations that the OCI image specification defines.
func (a about) labels() map[string]string {
	title, description := "Millwright", "Machine manager for Kubernetes"
	if a.base != "" {
		title, description = "Millwright hypervisor", "Hypervisor of virtual machines, with QEMU; the licenses of all parts are in /usr/share/doc"
	}
	labels := map[string]string{
		"org.opencontainers.image.title":       title,
		"org.opencontainers.image.description": description,
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

// indexOf returns the image for the platforms of the programs, in order. It depends only on its arguments and the
// files of the programs.
func indexOf(a about, programs []program) (v1.ImageIndex, error) {
	base, err := baseOf(a)
	if err != nil {
		return nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		image, err := imageOf(a, slices.Clone(base), p)
		if err != nil {
			return nil, fmt.Errorf("cannot build the image for %s: %w", p.platform, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: plain{image}, Descriptor: v1.Descriptor{Platform: &p.platform}})
	}
	return mutate.Annotations(index, a.labels()).(v1.ImageIndex), nil
}

// baseOf returns the layers that rarely change between releases.
func baseOf(a about) ([]mutate.Addendum, error) {
	authorities, err := roots()
	if err != nil {
		return nil, err
	}
	layer, err := layerOf(imageFile{name: rootsPath, mode: 0o644, content: authorities})
	if err != nil {
		return nil, err
	}
	base := []mutate.Addendum{{Layer: layer, History: a.history("root certificates")}}
	if a.base == "" {
		return base, nil
	}
	files, err := layerOfDir(a.base)
	if err != nil {
		return nil, fmt.Errorf("cannot pack %s: %w", a.base, err)
	}
	return append(base, mutate.Addendum{Layer: files, History: a.history("Debian packages")}), nil
}

// plain is an image without an artifact type. The library would write the type to the index, and programs that drop
// the field would change the digest.
type plain struct{ v1.Image }

// ArtifactType returns no type.
func (plain) ArtifactType() (string, error) { return "", nil }

func imageOf(a about, base []mutate.Addendum, p program) (v1.Image, error) {
	content, err := os.ReadFile(p.path)
	if err != nil {
		return nil, err
	}
	file := imageFile{name: programPath, mode: 0o755, content: content, links: mcmNames}
	if a.base != "" {
		file.attributes = map[string]string{fileCapability: netRaw()}
	}
	layer, err := layerOf(file)
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
	return mutate.Append(image, append(base, mutate.Addendum{Layer: layer, History: a.history("millwright " + a.version)})...)
}

func (a about) history(what string) v1.History {
	return v1.History{Created: v1.Time{Time: a.created}, CreatedBy: "hack/image.sh", Comment: what}
}

// mcmNames are the paths of MCM's processes in its images; the working directory is the root.
var mcmNames = []string{"machine-controller", "machine-controller-manager"}

// imageFile is a file with symbolic links to it. Names are relative to the root of the image.
type imageFile struct {
	name    string
	mode    int64
	content []byte
	links   []string
	// attributes are extended attributes of the file.
	attributes map[string]string
}

// fileCapability is the extended attribute with the capabilities of a program.
const fileCapability = "security.capability"

// netRaw returns a file capability, as struct vfs_cap_data of Linux, version 2. It permits hypervisors to open packet
// sockets in Pods that have the capability NET_RAW. It does not make the capability effective, because the program would then
// not start in other Pods.
func netRaw() string {
	const version2, capNetRaw = 0x02000000, 13
	var data []byte
	for _, part := range []uint32{version2, 1 << capNetRaw, 0, 0, 0} { // permitted and inheritable, then those from 32 on
		data = binary.LittleEndian.AppendUint32(data, part)
	}
	return string(data)
}

// layerOf returns a layer with one file, its parent directories and its links, owned by root, with the modification
// time 0.
func layerOf(file imageFile) (v1.Layer, error) {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	for _, dir := range above(file.name) {
		if err := writer.WriteHeader(header(tar.TypeDir, dir+"/", 0o755, 0)); err != nil {
			return nil, err
		}
	}
	of := header(tar.TypeReg, file.name, file.mode, len(file.content))
	for name, value := range file.attributes {
		of.Format, of.PAXRecords = tar.FormatPAX, map[string]string{"SCHILY.xattr." + name: value}
	}
	if err := writer.WriteHeader(of); err != nil {
		return nil, err
	}
	if _, err := writer.Write(file.content); err != nil {
		return nil, err
	}
	for _, link := range file.links {
		to := header(tar.TypeSymlink, link, 0o777, 0)
		to.Linkname = "/" + file.name
		if err := writer.WriteHeader(to); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return packed(archive.Bytes())
}

// packed returns a layer with the content of an archive.
func packed(archive []byte) (v1.Layer, error) {
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }
	return tarball.LayerFromOpener(open,
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

// layerOfDir returns a layer with the regular files and directories in a directory, with their permissions,
// owned by root, with the modification time 0. Anything else is an error.
func layerOfDir(dir string) (v1.Layer, error) {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error { // in the order of names
		if err != nil || name == "." {
			return err
		}
		if entry.IsDir() {
			return writer.WriteHeader(header(tar.TypeDir, name+"/", 0o755, 0))
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", name)
		}
		content, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		if err := writer.WriteHeader(header(tar.TypeReg, name, int64(info.Mode().Perm()), len(content))); err != nil {
			return err
		}
		_, err = writer.Write(content)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return packed(archive.Bytes())
}

func header(kind byte, name string, mode int64, size int) *tar.Header {
	return &tar.Header{Typeflag: kind, Name: name, Mode: mode, Size: int64(size), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
}

// above returns the parent directories of a file, outermost first.
func above(name string) []string {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	return append(above(dir), dir)
}

// roots returns the certificates that Mozilla trusts, as PEM, each below its name. They come from a module, not
// from the builder's system, so that all builds are the same. Certificates that are trusted with a constraint are
// left out, because the file format does not support constraints.
func roots() ([]byte, error) {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		certificate, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "# %s\n", certificate.Subject)
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}
