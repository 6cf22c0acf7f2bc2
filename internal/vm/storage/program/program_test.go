package program_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/storage/program"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A server that cannot serve terminates with the same reasons as a hypervisor. It rejects an invalid specification
// before it changes anything.
func TestRun_ReportsWhyItCannotServe(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = taken.Close() }()
	for name, test := range map[string]struct {
		given     func(t *testing.T, config *program.Config)
		want      string
		message   string
		untouched bool
	}{
		"a device": {func(_ *testing.T, c *program.Config) {
			c.Spec.RootDiskPath = vmpb.RootDevicePath
		}, vmpb.EndInvalidSpec, "root_disk_path", true},
		"a data device": {func(_ *testing.T, c *program.Config) {
			c.Spec.DataDisks = []*vmpb.DataDisk{{Name: "logs", Path: vmpb.DataDevicePath("logs")}}
		}, vmpb.EndInvalidSpec, "data_disks[0].path", true},
		"a target": {func(_ *testing.T, c *program.Config) {
			c.Spec.Mode = vmpb.VMSpec_SM_INCOMING_MIGRATION
		}, vmpb.EndInvalidSpec, "mode", true},
		"no daemon": {func(_ *testing.T, c *program.Config) {
			c.Program = "qemu-storage-daemon-that-is-missing"
		}, vmpb.EndNoQEMU, "", true},
		"a lost disk": {func(_ *testing.T, c *program.Config) {
			c.Spec.RootDiskExists = true
		}, vmpb.EndDiskLost, "", false},
		"a locked disk": {func(t *testing.T, c *program.Config) {
			lock, err := disk.Acquire(c.Paths.RootDisk)
			must(t, err)
			t.Cleanup(func() { _ = lock.Release() })
		}, vmpb.EndDiskLocked, "", false},
		"a port in use": {func(_ *testing.T, c *program.Config) {
			c.Sessions = taken.Addr().String()
		}, vmpb.EndInternal, "listening for sessions", false},
		"an invalid record": {func(t *testing.T, c *program.Config) {
			must(t, os.WriteFile(c.Paths.RootDisk+".fence", []byte("?"), 0o600))
		}, vmpb.EndInternal, "record of tokens", false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			spec := &vmpb.VMSpec{
				Name: "web", Namespace: "default", PodName: "web-disks", Mode: vmpb.VMSpec_SM_RUN, RootDiskBytes: 1 << 20, ControllerEndpoint: "controller:1",
			}
			config := program.Config{
				Spec: spec, Paths: hypervisor.PathsFor(spec, root), Control: "127.0.0.1:0", Sessions: "127.0.0.1:0",
				Connect: func(string) (*grpc.ClientConn, error) {
					return grpc.NewClient("passthrough:///nowhere:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
				},
				LockRetry: time.Millisecond, LockLimit: 50 * time.Millisecond, Prepared: time.Millisecond,
			}
			must(t, os.MkdirAll(filepath.Dir(config.Paths.RootDisk), 0o700))
			test.given(t, &config)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			end := program.Run(ctx, config)
			if end.Reason != test.want || !strings.Contains(end.Message, test.message) {
				t.Errorf("terminated with %+v, want %s and %q", end, test.want, test.message)
			}
			files, err := filepath.Glob(filepath.Join(filepath.Dir(config.Paths.RootDisk), "*"))
			must(t, err)
			if _, err := os.Stat(config.Paths.Run); test.untouched && (len(files) > 0 || err == nil) {
				t.Errorf("files = %v, run directory: %v", files, err)
			}
		})
	}
}
