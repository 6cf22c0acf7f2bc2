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

// TestWriteFiles: files get content, permissions and owners; a second one may add to a first.
func TestWriteFiles(t *testing.T) {
	owners := map[string][2]int{}
	disk := tree{root: t.TempDir(), chown: func(file *os.File, user, group int) error {
		owners[filepath.Base(file.Name())] = [2]int{user, group}
		if info, err := file.Stat(); err != nil || info.Size() > 0 && filepath.Base(file.Name()) == "key" {
			t.Errorf("%s has content before its owner: %v", file.Name(), err)
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
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if diff := cmp.Diff(map[string][2]int{"key": {65534, 5}, "old": {0, 0}}, owners); diff != "" {
		t.Errorf("owners (-want +got)\n%s", diff)
	}
}

func TestWriteFilesNamesTheFile(t *testing.T) {
	disk := tree{root: t.TempDir(), chown: func(*os.File, int, int) error { return nil }}
	if err := os.MkdirAll(filepath.Join(disk.root, "etc", "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(disk.root, "etc", "passwd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := disk.writeAll([]cloudconfig.File{{Path: "/a", User: "somebody"}})
	if !errors.Is(err, errNoSuchOwner) || !strings.Contains(err.Error(), "/a") {
		t.Errorf("an unknown owner: %v", err)
	}
	err = disk.writeAll([]cloudconfig.File{{Path: "/etc/folder"}, {Path: "/etc/other"}})
	if err == nil || !strings.Contains(err.Error(), "/etc/folder") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := os.Stat(filepath.Join(disk.root, "etc", "other")); err == nil {
		t.Error("it went on after a failure")
	}
}

// TestUnsuccessful: Cluster API's user data have succeeded if their last file is there.
func TestUnsuccessful(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "cluster-api")
	done := filepath.Join(folder, "done")
	if err := unsuccessful(folder, done); err != nil {
		t.Errorf("user data of others: %v", err)
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unsuccessful(folder, done); err == nil {
		t.Error("without the file it succeeded")
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unsuccessful(folder, done); err != nil {
		t.Errorf("with the file: %v", err)
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
		t.Errorf("no log: %q", got)
	}
}

// TestHostsKeepWhatOthersAdded: a second boot leaves the file alone, another address does not.
func TestHostsKeepWhatOthersAdded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	host := &Node{Data: userdata.UserData{NodeName: "vm-1"}, Links: links("10.77.0.16")}
	write := func(want string) {
		t.Helper()
		if err := host.writeHosts(path); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
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
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// keepsWhatIsWanted: a service without its file does not run, and one that is stopped is not started again
// until it is wanted.
func keepsWhatIsWanted(t *testing.T, processes *Processes) {
	folder := t.TempDir()
	wanted, ran := filepath.Join(folder, "wanted"), filepath.Join(folder, "ran")
	service := Program{
		Args: []string{"/bin/sh", "-c", "rm " + wanted + "; echo >>" + ran}, Log: filepath.Join(folder, "log"), Enabled: wanted,
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		processes.Keep(ctx, service)
	}()
	for runs := 1; runs <= 2; runs++ {
		if err := os.WriteFile(wanted, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		gomega.NewWithT(t).Eventually(func() string {
			content, _ := os.ReadFile(ran) // there is none before the first
			return string(content)
		}).WithTimeout(time.Minute).Should(gomega.Equal(strings.Repeat("\n", runs))) // after a pause, if it still ran
	}
	cancel()
	<-kept
}
