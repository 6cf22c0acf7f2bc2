//go:build linux

package vm

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// diskVariable makes the test binary write a disk to this path from the URL in its argument, and print its limits
// before and after that.
const diskVariable = "MILLWRIGHT_TEST_DISK"

func TestMain(m *testing.M) {
	path := os.Getenv(diskVariable)
	if path == "" {
		os.Exit(m.Run())
	}
	files, err := imagesFrom(os.Getenv)
	fmt.Println(err, dataLimit(os.Getpid()))
	source, target := image.Source{URL: os.Args[1]}, image.Target{Path: path, Bytes: 1 << 20}
	fmt.Println(files.WriteDisk(context.Background(), source, target, image.Options{RetryTimeout: -1}), dataLimit(os.Getpid()))
	os.Exit(0)
}

// dataLimit returns the limit of a process's memory; see limitMemory.
func dataLimit(pid int) string {
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return err.Error()
	}
	return regexp.MustCompile(`Max data size +([^ ]+)`).FindStringSubmatch(string(limits))[1]
}

// TestHypervisor_MemoryIsLimitedDuringImageConversion checks that a faulty decoder terminates the process rather than
// exhausting the host's memory. QEMU, which starts afterwards, is not limited.
func TestHypervisor_MemoryIsLimitedDuringImageConversion(t *testing.T) {
	var command *exec.Cmd
	during := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		during <- dataLimit(command.Process.Pid)
		_, _ = w.Write(make([]byte, 512))
	}))
	defer server.Close()
	command = exec.Command(os.Args[0], server.URL)
	command.Env = append(os.Environ(), diskVariable+"="+filepath.Join(t.TempDir(), "disk.img"), vmpb.EnvImageServers+"="+strings.TrimPrefix(server.URL, "http://"))
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if want := "<nil> unlimited\n<nil> unlimited\n"; string(output) != want {
		t.Errorf("before and after: %q, want %q", output, want)
	}
	if got, want := <-during, fmt.Sprint(hardMemory); got != want {
		t.Errorf("meanwhile %s, want %s", got, want)
	}
}

// TestHypervisor_ImagePolicyFromEnvironment checks that the operator of a host determines which of its files images may refer
// to.
func TestHypervisor_ImagePolicyFromEnvironment(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kernel"), []byte("kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		env   map[string]string
		fails bool
	}{
		"nothing is allowed":      {map[string]string{}, true},
		"another directory":       {map[string]string{vmpb.EnvImages: t.TempDir()}, true},
		"the directory of images": {map[string]string{vmpb.EnvImages: dir}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			files, err := imagesFrom(func(name string) string { return tc.env[name] })
			if err != nil {
				t.Fatal(err)
			}
			source := image.Source{URL: "file://" + filepath.Join(dir, "kernel")}
			err = files.Fetch(t.Context(), source, filepath.Join(t.TempDir(), "kernel"), image.Options{RetryTimeout: -1})
			if (err != nil) != tc.fails {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := imagesFrom(func(string) string { return "nonsense" }); err == nil || !strings.Contains(err.Error(), vmpb.EnvImageServers) {
		t.Errorf("nonsense gives %v", err)
	}
}
