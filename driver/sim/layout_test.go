package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/driver"
)

// copyOf returns a copy of a directory of testdata, which has what each version of the driver wrote. The files must not
// be changed: add a directory when the layout changes.
func copyOf(t *testing.T, layout string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", layout))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openCloud(t *testing.T, dir string) *Cloud {
	t.Helper()
	cloud, err := OpenCloud(dir, CloudOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cloud.Close() })
	return cloud
}

// TestLayout_EarlierIsConverted checks that the cloud has the same VMs as before, however often it is opened, and that
// provider IDs are not reused.
func TestLayout_EarlierIsConverted(t *testing.T) {
	for layout, want := range map[string]struct {
		ids, zones []string
		next       string
	}{
		"layout1": {[]string{"sim:///ns/c/1-0000000d", "sim:///ns/m/2-0000000b", "sim:///ns/m/3-0000000c"}, []string{"a", "b"}, "sim:///ns/m/4-"},
		"layout2": {[]string{"sim:///ns/m/1-0000000a"}, []string{"a"}, "sim:///ns/m/2-"},
	} {
		t.Run(layout, func(t *testing.T) {
			dir := copyOf(t, layout)
			for range 2 {
				cloud := openCloud(t, dir)
				vms, err := cloud.VMs()
				var ids []string
				for _, v := range vms {
					ids = append(ids, v.ProviderID)
					if group := map[string]string{"c": driver.APIGroupClusterAPI}[v.Machine]; v.APIGroup != group {
						t.Errorf("%s has the API group %q, want %q", v.ProviderID, v.APIGroup, group)
					}
				}
				if diff := cmp.Diff(want.ids, ids); err != nil || diff != "" {
					t.Errorf("VMs (-want +got), %v:\n%s", err, diff)
				}
				zones, err := cloud.Zones()
				if diff := cmp.Diff(want.zones, zones); err != nil || diff != "" {
					t.Errorf("zones (-want +got), %v:\n%s", err, diff)
				}
			}
			added, err := openCloud(t, dir).Add(VM{Namespace: "ns", Machine: "m", Pool: "small"})
			if err != nil || !strings.HasPrefix(added.ProviderID, want.next) {
				t.Errorf("the next VM is %q, %v; want %s", added.ProviderID, err, want.next)
			}
		})
	}
}

// TestLayout_ConversionIsRepeated checks a process that was killed before it renamed the old directory.
func TestLayout_ConversionIsRepeated(t *testing.T) {
	dir := copyOf(t, "layout1")
	first := openCloud(t, dir)
	if err := os.Rename(filepath.Join(dir, oldVMs+oldSuffix), filepath.Join(dir, oldVMs)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Vanish("ns/c"); err != nil {
		t.Fatal(err)
	}
	vms, err := openCloud(t, dir).VMs()
	if err != nil || len(vms) != 2 {
		t.Errorf("%d VMs, %v; want 2, since one vanished after the conversion", len(vms), err)
	}
}

// TestLayout_UnknownIsRefused checks layouts that must not be ignored.
func TestLayout_UnknownIsRefused(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"a later version": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "journal"), []byte("{\"version\":3}\n"), 0o600)
		},
		"an unknown face": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "vms/ns/m/4-0.json"), []byte(`{"providerID":"sim:///ns/m/4-0","face":"other"}`), 0o600)
		},
		"an unreadable VM": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "vms/ns/m/4-0.json"), []byte("{"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyOf(t, "layout1")
			if err := change(dir); err != nil {
				t.Fatal(err)
			}
			if cloud, err := OpenCloud(dir, CloudOptions{}); err == nil {
				_ = cloud.Close()
				t.Error("the directory was opened")
			}
		})
	}
}
