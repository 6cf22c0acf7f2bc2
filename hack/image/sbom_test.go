package main

import (
	"encoding/json"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// TestSBOM_ListsAllModules: the bill of a program (this test) lists all its modules, and is reproducible.
func TestSBOM_ListsAllModules(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	packages, err := readPackages(p.write("packages", "libbpf1 1:1.1.2-0+deb12u1\nseabios 1.16.2-1\n"))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, dir := range []string{"first", "second"} {
		if err := writeSBOMs(p.path(dir), "v1.2.3", packages, []program{{platform: v1.Platform{OS: "linux", Architecture: "amd64"}, path: executable}}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(p.path(dir + "/linux-amd64.cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	if texts[0] != texts[1] {
		t.Errorf("the second bill differs:\n%s\n%s", texts[0], texts[1])
	}
	var bill cdx.BOM
	if err := json.Unmarshal([]byte(texts[0]), &bill); err != nil {
		t.Fatal(err)
	}
	if main := bill.Metadata.Component; !strings.HasSuffix(main.Name, "/hack/image") || main.Version != "v1.2.3" {
		t.Errorf("got bill of %+v", main)
	}
	info, _ := debug.ReadBuildInfo()
	want := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	for _, module := range info.Deps {
		want = append(want, "pkg:golang/"+module.Path+"@"+module.Version)
	}
	want = append(want, "pkg:deb/debian/libbpf1@1%3A1.1.2-0%2Bdeb12u1?arch=amd64", "pkg:deb/debian/seabios@1.16.2-1?arch=amd64")
	if len(want) < 5 {
		t.Fatalf("got only the modules %q", want)
	}
	for _, url := range want {
		if !slices.ContainsFunc(*bill.Components, func(c cdx.Component) bool { return c.PackageURL == url }) {
			t.Errorf("%s is missing", url)
		}
	}
}
