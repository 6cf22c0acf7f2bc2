package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// newRegistry returns the address of a registry for this test.
func newRegistry(t *testing.T) string {
	t.Helper()
	t.Setenv("DOCKER_CONFIG", t.TempDir()) // the user who runs the tests may have saved credentials
	t.Setenv("HOME", t.TempDir())
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// pack writes an archive with the given files, and returns its path.
func pack(t *testing.T, file string, files map[string]string) string {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for name, content := range files {
		if err := archive.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(path, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// imageArchive returns the path of an archive with the layout of an image for two platforms, and the image's digest.
func imageArchive(t *testing.T) (path string, digest v1.Hash) {
	t.Helper()
	index, err := random.Index(100, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index})); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		files["./"+strings.TrimPrefix(path, dir+"/")] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if digest, err = index.Digest(); err != nil {
		t.Fatal(err)
	}
	return pack(t, "image.oci.tar.gz", files), digest
}

func TestPush_ImagesKeepTheirDigest(t *testing.T) {
	host := newRegistry(t)
	archive, digest := imageArchive(t)
	var out bytes.Buffer
	if err := run(t.Context(), []string{archive, host + "/team/millwright:v0.1.0", archive, host + "/team/other:v0.1.0"}, &out); err != nil {
		t.Fatal(err)
	}
	if want := host + "/team/millwright:v0.1.0@" + digest.String() + "\n" + host + "/team/other:v0.1.0@" + digest.String() + "\n"; out.String() != want {
		t.Errorf("the output is %q, want %q", &out, want)
	}
	tag, err := name.NewTag(host + "/team/millwright:v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(pulled); err != nil {
		t.Error(err)
	}
	if got, err := pulled.Digest(); err != nil || got != digest {
		t.Errorf("the registry has %s, %v, want %s", got, err, digest)
	}
}

func TestPush_ChartHasFormatOfHelm(t *testing.T) {
	host := newRegistry(t)
	chart := pack(t, "chart.tgz", map[string]string{
		"millwright/Chart.yaml": "name: millwright\nversion: 0.1.0\n", "millwright/charts/other/Chart.yaml": "name: other\n", "millwright/values.yaml": "mode: whole\n",
	})
	if err := run(t.Context(), []string{chart, host + "/charts/millwright:0.1.0"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(host + "/charts/millwright:0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(tag)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if pulled.MediaType != types.OCIManifestSchema1 || pulled.Config.MediaType != chartConfig || len(pulled.Layers) != 1 || pulled.Layers[0].MediaType != chartContent {
		t.Errorf("the manifest is %+v", pulled)
	}
	metadata, err := image.RawConfigFile()
	if diff := cmp.Diff(`{"name":"millwright","version":"0.1.0"}`, string(metadata)); err != nil || diff != "" {
		t.Errorf("%v; metadata (-want +got):\n%s", err, diff)
	}
	content, err := os.ReadFile(chart)
	if err != nil {
		t.Fatal(err)
	}
	if digest, _, err := v1.SHA256(bytes.NewReader(content)); err != nil || digest != pulled.Layers[0].Digest {
		t.Errorf("the registry has the chart %s, want %s, %v", pulled.Layers[0].Digest, digest, err)
	}
}

func TestPush_InvalidFilesAreRejected(t *testing.T) {
	host := newRegistry(t)
	for name, args := range map[string][]string{
		"no arguments":      nil,
		"no reference":      {"file"},
		"missing file":      {filepath.Join(t.TempDir(), "none.oci.tar.gz"), host + "/a:1"},
		"invalid reference": {pack(t, "chart.tgz", nil), "Not A Reference"},
		"no chart":          {pack(t, "chart.tgz", map[string]string{"millwright/values.yaml": ""}), host + "/a:1"},
		"no layout":         {pack(t, "image.oci.tar.gz", map[string]string{"a": ""}), host + "/a:1"},
		"escapes":           {pack(t, "image.oci.tar.gz", map[string]string{"../../a": ""}), host + "/a:1"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t.Context(), args, io.Discard); err == nil {
				t.Error("no error")
			}
		})
	}
}
