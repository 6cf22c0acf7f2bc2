package system

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"

	"github.com/millwright-dev/millwright/guest/cloudconfig"
	"github.com/millwright-dev/millwright/guest/userdata"
)

// TestWriteFiles: files have the specified content, permissions and owners; an entry may append to an earlier file.
func TestWriteFiles(t *testing.T) {
	owners := map[string][2]int{}
	disk := tree{root: t.TempDir(), chown: func(file *os.File, user, group int) error {
		owners[filepath.Base(file.Name())] = [2]int{user, group}
		if info, err := file.Stat(); err != nil || info.Size() > 0 && filepath.Base(file.Name()) == "key" {
			t.Errorf("%s has content before its owner is set: %v", file.Name(), err)
		}
		return nil
	}}
	put := func(path, content string, mode fs.FileMode) {
		t.Helper()
		at := filepath.Join(disk.root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), mode)); err != nil {
			t.Fatal(err)
		}
	}
	put("etc/passwd", "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n", 0o644)
	put("etc/group", "root:x:0:\ntty:x:5:\n", 0o644)
	put("etc/old", "a longer content than the new one", 0o644)
	err := disk.writeAll([]cloudconfig.File{
		{Path: "/etc/pki/key", Mode: 0o600, Content: []byte("secret"), User: "nobody", Group: "tty"},
		{Path: "/etc/old", Mode: 0o640, Content: []byte("new"), User: "7", Group: "8"},
		{Path: "/etc/old", Mode: 0o640, Content: []byte("er"), Append: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"etc/pki/key": "-rw------- secret", "etc/old": "-rw-r----- newer"} {
		content, err := os.ReadFile(filepath.Join(disk.root, path))
		info, infoErr := os.Stat(filepath.Join(disk.root, path))
		if err := errors.Join(err, infoErr); err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().String() + " " + string(content); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	if diff := cmp.Diff(map[string][2]int{"key": {65534, 5}, "old": {0, 0}}, owners); diff != "" {
		t.Errorf("owners (-want +got)\n%s", diff)
	}
}

func TestWriteFiles_NamesFile(t *testing.T) {
	disk := tree{root: t.TempDir(), chown: func(*os.File, int, int) error { return nil }}
	if err := os.MkdirAll(filepath.Join(disk.root, "etc", "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(disk.root, "etc", "passwd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := disk.writeAll([]cloudconfig.File{{Path: "/a", User: "somebody"}})
	if !errors.Is(err, errNoSuchOwner) || !strings.Contains(err.Error(), "/a") {
		t.Errorf("unknown owner: got error %v", err)
	}
	err = disk.writeAll([]cloudconfig.File{{Path: "/etc/dir"}, {Path: "/etc/other"}})
	if err == nil || !strings.Contains(err.Error(), "/etc/dir") {
		t.Errorf("directory: got error %v", err)
	}
	if _, err := os.Stat(filepath.Join(disk.root, "etc", "other")); err == nil {
		t.Error("writeAll continued after a failure")
	}
}

// TestUserData_FailsWithoutSuccessFile: Cluster API's user data has succeeded if its last file exists.
func TestUserData_FailsWithoutSuccessFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster-api")
	done := filepath.Join(dir, "done")
	if err := unsuccessful(dir, done); err != nil {
		t.Errorf("other user data: got error %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unsuccessful(dir, done); err == nil {
		t.Error("without the file: got no error")
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unsuccessful(dir, done); err != nil {
		t.Errorf("with the file: got error %v", err)
	}
}

func TestLastLines(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("one\n\ntwo\n  three\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for count, want := range map[int][]string{2: {"two", "three"}, 9: {"one", "two", "three"}} {
		if diff := cmp.Diff(want, lastLines(log, count)); diff != "" {
			t.Errorf("%d lines (-want +got)\n%s", count, diff)
		}
	}
	if got := lastLines(log+".none", 2); len(got) > 0 {
		t.Errorf("no log: got %q", got)
	}
}

// TestHosts_KeepsOtherEntries: a second boot does not change the file, unless the address has changed.
func TestHosts_KeepsOtherEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	host := &Node{Data: userdata.UserData{NodeName: "vm-1"}, Links: links("10.77.0.16")}
	write := func(want string) {
		t.Helper()
		if err := host.writeHosts(path); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	const first = "127.0.0.1 localhost\n::1 localhost\n10.77.0.16 vm-1\n"
	write(first)
	if err := os.WriteFile(path, []byte(first+"10.77.0.9 api\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(first + "10.77.0.9 api\n")
	host.Links = links("10.77.0.17")
	write("127.0.0.1 localhost\n::1 localhost\n10.77.0.17 vm-1\n")
}

func TestIPv4Subnet(t *testing.T) {
	for text, want := range map[string]string{
		"":           "",
		"networking": "error",
		"networking: {podSubnet: 10.78.0.0/16, dnsDomain: x}": "10.78.0.0/16",
		"networking: {podSubnet: 'fd00::/48,10.78.0.1/16'}":   "10.78.0.0/16",
		"networking: {podSubnet: fd00::/48}":                  "",
	} {
		got, err := ipv4Subnet(text)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// startsOnlyEnabledServices checks that a service without its file does not run, and that a stopped service is not
// started again until it is enabled.
func startsOnlyEnabledServices(t *testing.T, processes *Processes) {
	dir := t.TempDir()
	enabled, ran := filepath.Join(dir, "enabled"), filepath.Join(dir, "ran")
	service := Program{
		Args: []string{"/bin/sh", "-c", "rm " + enabled + "; echo >>" + ran}, Log: filepath.Join(dir, "log"), Enabled: enabled,
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		processes.Keep(ctx, service)
	}()
	for runs := 1; runs <= 2; runs++ {
		if err := os.WriteFile(enabled, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		gomega.NewWithT(t).Eventually(func() string {
			content, _ := os.ReadFile(ran) // does not exist before the first run
			return string(content)
		}).WithTimeout(time.Minute).Should(gomega.Equal(strings.Repeat("\n", runs))) // another run would follow after a pause
	}
	cancel()
	<-kept
}
