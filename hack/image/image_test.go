package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// place is a working directory for building images.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	// The user who runs the tests may have saved credentials.
	t.Setenv("HOME", t.TempDir())
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(t.TempDir(), "none"))
	return &place{t: t, dir: t.TempDir()}
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

// write creates a file with the current modification time.
func (p *place) write(name, content string) string {
	p.t.Helper()
	path := p.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// make runs the command for programs of both platforms, and returns its output.
func (p *place) make(layout, reference string, flags ...string) (string, error) {
	args := append([]string{"--layout", p.path(layout), "--reference", reference, "--revision", "abc", "--created", "1700000000"}, flags...)
	args = append(args,
		"linux/amd64="+p.write("amd64", "a program"),
		"linux/arm64="+p.write("arm64", "a program for another platform"))
	var out bytes.Buffer
	err := run(context.Background(), args, &out)
	return strings.TrimSpace(out.String()), err
}

const reference = "registry.example.com/team/millwright:v0.1.0"

func TestImage_HasFormatAndLabels(t *testing.T) {
	p := newPlace(t)
	digest, err := p.make("image", reference)
	if err != nil {
		t.Fatal(err)
	}
	index := read(t, p.path("image"), digest)
	if err := validate.Index(index); err != nil {
		t.Errorf("the image is invalid: %v", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(labels, manifest.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	for i, platform := range []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}} {
		image := imageIn(t, index, manifest.Manifests[i].Digest)
		if got := manifest.Manifests[i].Platform; got == nil || !got.Equals(platform) {
			t.Errorf("image %d is for %v, want %v", i, got, platform)
		}
		if kind := manifest.Manifests[i].ArtifactType; kind != "" {
			t.Errorf("the image for %s has media type %s", platform, kind)
		}
		isFor(t, image, platform)
	}
}

func imageIn(t *testing.T, index v1.ImageIndex, digest v1.Hash) v1.Image {
	t.Helper()
	image, err := index.Image(digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// labels are the labels of the image that make creates.
var labels = map[string]string{
	"org.opencontainers.image.title": "Millwright", "org.opencontainers.image.description": "Machine manager for Kubernetes",
	"org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.source": "https://github.com/millwright-dev/millwright",
	"org.opencontainers.image.version": "v0.1.0", "org.opencontainers.image.revision": "abc", "org.opencontainers.image.created": "2023-11-14T22:13:20Z",
}

// isFor checks the configuration of an image for a platform.
func isFor(t *testing.T, image v1.Image, platform v1.Platform) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{
		User: "65532:65532", Entrypoint: []string{"/usr/bin/millwright"}, Env: []string{"PATH=/usr/bin"}, WorkingDir: "/", Labels: labels,
	}
	if diff := cmp.Diff(want, config.Config); diff != "" {
		t.Errorf("configuration for %s (-want +got):\n%s", platform, diff)
	}
	if !config.Platform().Equals(platform) || !config.Created.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("the configuration for %s has platform %s and time %s", platform, config.Platform(), config.Created)
	}
}

// read returns the image of a layout.
func read(t *testing.T, dir, digest string) v1.ImageIndex {
	t.Helper()
	hash, err := v1.NewHash(digest)
	if err != nil {
		t.Fatalf("printed as digest: %v", err)
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	index, err := all.ImageIndex(hash)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestImage_IsReproducible: every byte of the layout is the same for another user, in another directory, at
// another time.
func TestImage_IsReproducible(t *testing.T) {
	first := newPlace(t)
	digest, err := first.make("image", reference)
	if err != nil {
		t.Fatal(err)
	}
	second := newPlace(t)
	again, err := second.make("somewhere/else", reference)
	if err != nil {
		t.Fatal(err)
	}
	if again != digest {
		t.Errorf("got different digests %s and %s", digest, again)
	}
	if diff := cmp.Diff(files(t, first.path("image")), files(t, second.path("somewhere/else"))); diff != "" {
		t.Errorf("layouts (-first +second):\n%s", diff)
	}
	if other, err := second.make("image", reference, "--created", "1700000001"); err != nil || other == digest {
		t.Errorf("image with another time: got %s, %v", other, err)
	}
}

// files returns the content of all files below a directory, by name.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, path)
		all[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestLayout_ReplacesOlderLayout: a layout replaces only an older layout.
func TestLayout_ReplacesOlderLayout(t *testing.T) {
	p := newPlace(t)
	if _, err := p.make("image", "registry.example.com/team/millwright:v0.0.9"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"image", "fresh"} {
		if _, err := p.make(name, reference); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(files(t, p.path("fresh")), files(t, p.path("image"))); diff != "" {
		t.Errorf("files of the older layout remain:\n%s", diff)
	}
	mine := p.write("mine/precious", "text")
	if _, err := p.make("mine", reference); err == nil {
		t.Error("a directory that is not a layout was replaced")
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(p.path(".*")); err != nil || len(left) > 0 {
		t.Errorf("temporary files remain: %v, %v", left, err)
	}
}

func TestPush_PushesImageOfLayout(t *testing.T) {
	p := newPlace(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	pushed := strings.TrimPrefix(server.URL, "http://") + "/team/millwright:v0.1.0"
	if _, err := p.make("image", pushed); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(pushed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Index(tag); err == nil {
		t.Error("the image was pushed without --push")
	}
	digest, err := p.make("image", pushed, "--push")
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := index.Digest(); err != nil || got.String() != digest {
		t.Errorf("got pushed image %s, %v; want %s", got, err, digest)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("the pushed image is invalid: %v", err)
	}
}

func TestCommand_Line(t *testing.T) {
	p := newPlace(t)
	program := "linux/amd64=" + p.write("amd64", "a program")
	for name, args := range map[string][]string{
		"nothing":             nil,
		"no program":          {"--layout", p.path("image"), "--reference", reference},
		"no layout":           {"--reference", reference, program},
		"no reference":        {"--layout", p.path("image"), program},
		"no path":             {"--layout", p.path("image"), "--reference", reference, "linux/amd64"},
		"no such program":     {"--layout", p.path("image"), "--reference", reference, "linux/amd64=" + p.path("none")},
		"no name of an image": {"--layout", p.path("image"), "--reference", "Millwright!", program},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t.Context(), args, io.Discard); err == nil {
				t.Error("run returned no error")
			}
			if _, err := os.Stat(p.path("image")); err == nil {
				t.Error("an image was written despite the error")
			}
		})
	}
}

// TestRoots_AreReadByGo: Go reads the file like the root certificates of a system, and each entry is one certificate.
func TestRoots_AreReadByGo(t *testing.T) {
	text, err := roots()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if !certificate.IsCA {
			t.Errorf("%s is not a CA certificate", certificate.Subject)
		}
		known[certificate.Subject.CommonName] = true
	}
	if !known["ISRG Root X1"] || len(known) < 100 {
		t.Errorf("got %d certificates: %v", len(known), known)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		t.Error("Go cannot parse the file")
	}
}

// TestImage_HasPathsOfMCM: the program also has the paths of the programs in MCM's images.
func TestImage_HasPathsOfMCM(t *testing.T) {
	layer, err := layerOf(imageFile{name: programPath, mode: 0o755, content: []byte("a program"), links: mcmNames})
	if err != nil {
		t.Fatal(err)
	}
	content, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{}
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeSymlink {
			links["/"+header.Name] = header.Linkname
		}
	}
	want := map[string]string{"/machine-controller": "/usr/bin/millwright", "/machine-controller-manager": "/usr/bin/millwright"}
	if diff := cmp.Diff(want, links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}
