package seed

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/diskfs/go-diskfs"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/google/go-cmp/cmp"
)

func content() Content {
	return Content{
		InstanceID: "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
		HostName:   "web",
		ProviderID: "millwright:///default/6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
		UserData:   []byte("#millwright-guest\ntoken: \x00\xff\n"),
		Network: &Network{
			MAC: net.HardwareAddr{2, 0, 0, 0, 0, 7},
			Links: []Link{
				{netip.MustParsePrefix("10.77.0.16/16"), netip.MustParseAddr("10.77.0.2")},
				{netip.MustParsePrefix("fd77::16/64"), netip.MustParseAddr("fd77::2")},
			},
			NameServers: []netip.Addr{netip.MustParseAddr("10.77.0.3")},
		},
	}
}

// read returns the files of a volume as an independent implementation sees them.
func read(t *testing.T, image []byte) (volume string, files map[string][]byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	disk, err := diskfs.Open(path, diskfs.WithOpenMode(diskfs.ReadOnly))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = disk.Close() }()
	volumeFS, err := disk.GetFilesystem(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, is := volumeFS.(*iso9660.FileSystem); !is {
		t.Fatalf("the volume is a %T", volumeFS)
	}
	files = map[string][]byte{}
	entries, err := volumeFS.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := fs.ReadFile(volumeFS, entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = data
	}
	return volumeFS.Label(), files
}

func TestSeed_ContainsConfiguration(t *testing.T) {
	image, err := Image(content())
	if err != nil {
		t.Fatal(err)
	}
	volume, files := read(t, image)
	if string(bytes.TrimRight([]byte(volume), " ")) != "cidata" {
		t.Errorf("volume label = %q", volume)
	}
	if !bytes.Equal(files["user-data"], content().UserData) {
		t.Errorf("user data %q", files["user-data"])
	}
	for name, want := range map[string]string{
		"meta-data": `{"instance-id": "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21", "local-hostname": "web",
			"provider-id": "millwright:///default/6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21"}`,
		"network-config": `{"version": 2, "ethernets": {"eth0": {
			"match": {"macaddress": "02:00:00:00:00:07"},
			"addresses": ["10.77.0.16/16", "fd77::16/64"],
			"gateway4": "10.77.0.2", "gateway6": "fd77::2",
			"nameservers": {"addresses": ["10.77.0.3"]}}}}`,
	} {
		if diff := cmp.Diff(parsed(t, []byte(want)), parsed(t, files[name])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if len(files) != 3 {
		t.Errorf("%d files, want 3", len(files))
	}
}

func parsed(t *testing.T, text []byte) (value any) {
	t.Helper()
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	return value
}

func TestSeed_UserDataSizes(t *testing.T) {
	for _, size := range []int{0, 1, sectorSize - 1, sectorSize, sectorSize + 1, 1 << 20} {
		c := content()
		c.UserData = bytes.Repeat([]byte("x"), size)
		c.Network = nil
		image, err := Image(c)
		if err != nil {
			t.Fatal(err)
		}
		_, files := read(t, image)
		if !bytes.Equal(files["user-data"], c.UserData) || len(files) != 2 {
			t.Errorf("wrote %d bytes of user data, read %d bytes, in %d files", size, len(files["user-data"]), len(files))
		}
		if len(image)%sectorSize != 0 {
			t.Errorf("the volume has %d bytes, want whole sectors", len(image))
		}
	}
	c := content()
	c.UserData = make([]byte, maxUserData+1)
	if _, err := Image(c); err == nil {
		t.Error("accepted user data above the limit")
	}
}

func TestSeed_IsReproducible(t *testing.T) {
	first, err := Image(content())
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		again, err := Image(content())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, again) {
			t.Fatal("the volume differs from one call to the next")
		}
	}
	other := content()
	other.HostName = "db"
	if image, _ := Image(other); bytes.Equal(first, image) {
		t.Error("another host name results in the same volume")
	}
}
