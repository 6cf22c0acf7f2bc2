package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestImage_OfHypervisors: the image has a layer with the files of a directory below the program, and does not
// depend on the location of the files.
func TestImage_OfHypervisors(t *testing.T) {
	p := newPlace(t)
	digest := ""
	for _, dir := range []string{"here", "there"} {
		p.write(dir+"/usr/share/qemu/pvh.bin", "firmware")
		if err := os.Chmod(p.write(dir+"/usr/bin/qemu-img", "a program"), 0o755); err != nil {
			t.Fatal(err)
		}
		again, err := p.make("image-"+dir, reference, "--base", p.path(dir))
		if err != nil {
			t.Fatal(err)
		}
		if digest != "" && again != digest {
			t.Errorf("got different digests %s and %s", again, digest)
		}
		digest = again
	}
	index := read(t, p.path("image-here"), digest)
	if err := validate.Index(index); err != nil {
		t.Errorf("the image is invalid: %v", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if title := manifest.Annotations["org.opencontainers.image.title"]; title != "Millwright hypervisor" {
		t.Errorf("got title %q", title)
	}
	want := []entry{
		{"usr/", 0o755, ""}, {"usr/bin/", 0o755, ""}, {"usr/bin/qemu-img", 0o755, "a program"},
		{"usr/share/", 0o755, ""}, {"usr/share/qemu/", 0o755, ""}, {"usr/share/qemu/pvh.bin", 0o600, "firmware"},
	}
	for _, of := range manifest.Manifests {
		layers, err := imageIn(t, index, of.Digest).Layers()
		if err != nil || len(layers) != 3 {
			t.Fatalf("got %d layers, error %v", len(layers), err)
		}
		if diff := cmp.Diff(want, entries(t, layers[1]), cmp.AllowUnexported(entry{})); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	}
}

type entry struct {
	name    string
	mode    int64
	content string
}

// entries returns the entries of a layer. All must belong to root and have the same time.
func entries(t *testing.T, layer v1.Layer) []entry {
	t.Helper()
	stream, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var all []entry
	for archive := tar.NewReader(stream); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.ModTime.Unix() != 0 {
			t.Errorf("%s has owner %d:%d and time %s", header.Name, header.Uid, header.Gid, header.ModTime)
		}
		all = append(all, entry{header.Name, header.Mode, string(content)})
	}
}

// TestImage_PermitsPacketSockets checks that the program in the hypervisor image may use the capability NET_RAW of its Pod, and
// that the program in the manager's image may not.
func TestImage_PermitsPacketSockets(t *testing.T) {
	p := newPlace(t)
	p.write("base/usr/bin/qemu-system-x86_64", "a program")
	for name, c := range map[string]struct {
		flags []string
		want  string
	}{
		"manager":     {nil, ""},
		"hypervisors": {[]string{"--base", p.path("base")}, "\x00\x00\x00\x02" + "\x00\x20\x00\x00" + strings.Repeat("\x00", 12)},
	} {
		t.Run(name, func(t *testing.T) {
			digest, err := p.make(name, reference, c.flags...)
			if err != nil {
				t.Fatal(err)
			}
			if got := capabilityOf(t, read(t, p.path(name), digest)); got != c.want {
				t.Errorf("the capability is %q, want %q", got, c.want)
			}
		})
	}
}

// capabilityOf returns the file capability of the program in an image.
func capabilityOf(t *testing.T, index v1.ImageIndex) string {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := layers[len(layers)-1].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for archive := tar.NewReader(stream); ; {
		header, err := archive.Next()
		if err != nil {
			t.Fatal(err)
		}
		if header.Name == programPath {
			return header.PAXRecords["SCHILY.xattr.security.capability"]
		}
	}
}

// TestImage_RejectsInvalidBase: invalid files and package lists are rejected, and no image is written.
func TestImage_RejectsInvalidBase(t *testing.T) {
	p := newPlace(t)
	if err := os.MkdirAll(p.path("links"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/shadow", p.path("links/a")); err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{
		"a link":           {"--base", p.path("links")},
		"no directory":     {"--base", p.path("none")},
		"no packages":      {"--sbom", p.path("sbom"), "--packages", p.path("none")},
		"invalid packages": {"--sbom", p.path("sbom"), "--packages", p.write("packages", "a b c\n")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := p.make("image", reference, flags...); err == nil {
				t.Error("run returned no error")
			}
			if _, err := os.Stat(p.path("image")); err == nil {
				t.Error("an image was written despite the error")
			}
		})
	}
}
