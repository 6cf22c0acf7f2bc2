package hypervisor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func TestDisk_IsPreparedBeforeFirstStart(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.preparing()
		p := w.start()
		p.wantAlive()
		if want := diskMark + imageContent[len(diskMark):]; !strings.HasPrefix(w.disk(), want) {
			t.Errorf("the disk starts with %q", w.disk()[:len(want)])
		}
		if size := len(w.disk()); size != 1<<20 {
			t.Errorf("the disk has %d bytes, want %d", size, 1<<20)
		}
		var preparedBeforeRunning bool
		for _, report := range w.controller.Reports() {
			if report.GetState() == vmpb.ReportStateRequest_STATE_RUNNING {
				break
			}
			preparedBeforeRunning = preparedBeforeRunning || report.GetImagePrepared()
		}
		if !preparedBeforeRunning {
			t.Error("the guest ran before the controller knew about the prepared disk")
		}
	})
}

// TestDisk_IsNotPreparedWithoutNetwork checks that a guest whose Pod lacks an interface does not start, that its disk is not
// changed, and that the reason names the interface.
func TestDisk_IsNotPreparedWithoutNetwork(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.preparing()
		w.config.Spec.Networks = []*vmpb.NetworkInterface{{Name: "storage", Interface: "mw-missing"}}
		end := w.start().wantEnd(vmpb.EndNetworkUnavailable)
		if !strings.Contains(end.Message, "network storage: the pod has no network interface mw-missing; check that Multus ") {
			t.Errorf("message: %s", end.Message)
		}
		if w.disk() != "" || len(w.machines.Started()) > 0 {
			t.Error("the disk was prepared, or a machine started")
		}
	})
}

// Wherever the preparation is interrupted, the next process either starts over or keeps a complete disk. A disk
// that a guest has used is kept forever.
func TestDisk_InterruptedPreparation(t *testing.T) {
	for _, last := range append(writeSteps, "started") {
		t.Run(last, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.preparing()
				interrupted := false
				w.images.at = func(step string) error {
					if step == last && !interrupted {
						interrupted = true
						return syscall.EIO
					}
					return nil
				}
				first := w.start()
				if last == "started" {
					first.term()
					first.wantEnd(vmpb.EndStopped)
				} else {
					first.wantEnd(vmpb.EndInternal)
				}
				second := w.start()
				second.wantAlive()
				if want := diskMark + imageContent[len(diskMark):]; !strings.HasPrefix(w.disk(), want) {
					t.Errorf("the disk starts with %q", w.disk()[:len(want)])
				}
				second.term()
				second.wantEnd(vmpb.EndStopped)

				ran := w.disk()
				third := w.start()
				third.term()
				third.wantEnd(vmpb.EndStopped)
				if w.disk() != ran || w.images.written != 1 {
					t.Errorf("the disk was written %d times", w.images.written)
				}
			})
		})
	}
}

func TestHypervisor_SIGTERMDuringPreparation(t *testing.T) {
	for _, last := range writeSteps {
		t.Run(last, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.preparing()
				reached, goOn := make(chan struct{}), make(chan struct{})
				w.images.at = func(step string) error {
					if step == last {
						close(reached)
						<-goOn
						return errors.New("the context is canceled")
					}
					return nil
				}
				p := w.start()
				<-reached
				p.term()
				close(goOn)
				p.wantEnd(vmpb.EndStopped)
				if len(w.machines.Started()) != 0 {
					t.Error("started a machine")
				}
			})
		})
	}
}

// Failures are reported while they are being retried.
func TestDisk_RetriedFailureIsReported(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.preparing()
		w.images.retried = errors.New("connection refused")
		w.start().wantAlive()
		for _, report := range w.controller.Reports() {
			if report.GetState() == vmpb.ReportStateRequest_STATE_PREPARING && report.GetMessage() == "connection refused; retrying" {
				return
			}
		}
		t.Errorf("no report contains the failure: %v", w.controller.Reports())
	})
}

func TestDisk_PreparationFailureIsClassified(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"unavailable": {fmt.Errorf("%w: 404", image.Unavailable), vmpb.EndImageUnavailable},
		"rejected":    {fmt.Errorf("%w: checksum", image.Rejected), vmpb.EndImageRejected},
		"too large":   {&os.PathError{Op: "truncate", Path: "x", Err: syscall.EFBIG}, vmpb.EndNoSpace},
		"no space":    {&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, vmpb.EndNoSpace},
		"else":        {syscall.EIO, vmpb.EndInternal},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.preparing()
				w.images.at = func(string) error { return test.err }
				w.start().wantEnd(test.want)
				if w.disk() != "" || len(w.machines.Started()) != 0 {
					t.Error("a disk or a machine exists")
				}
			})
		})
	}
}

func TestHypervisor_StartFails(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"no QEMU":        {qemu.ErrNotInstalled, vmpb.EndNoQEMU},
		"QEMU's message": {&qemu.StartError{Exit: qemu.Exit{Reason: qemu.Crashed, Code: 1, Stderr: "no"}}, vmpb.EndQEMUFailed},
		"invalid field":  {&qemu.FieldError{Field: "accelerator", Problem: "is none"}, vmpb.EndInvalidSpec},
		"locked":         {qemu.ErrDiskLocked, vmpb.EndDiskLocked},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.machines.Refuse = func(int) error { return test.err }
				w.start().wantEnd(test.want)
			})
		})
	}
}

func TestReport_ProgressOncePerSecond(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.preparing()
		w.images.pieces = 50
		goOn := make(chan struct{})
		w.images.at = func(step string) error {
			if step == "sync" {
				<-goOn
			}
			return nil
		}
		p := w.start()
		pass(10 * time.Second)
		var preparing int
		var last *vmpb.ReportStateRequest
		for _, report := range w.controller.Reports() {
			if report.GetState() == vmpb.ReportStateRequest_STATE_PREPARING {
				preparing, last = preparing+1, report
			}
		}
		if preparing < 5 || preparing > 8 {
			t.Errorf("got %d progress reports in five seconds", preparing)
		}
		if total := uint64(len(imageContent)); last.GetDoneBytes() != total || last.GetTotalBytes() != total {
			t.Errorf("last report = %d of %d bytes", last.GetDoneBytes(), last.GetTotalBytes())
		}
		close(goOn)
		pass(0)
		p.wantAlive()
	})
}

func TestDisk_IsBlankWithoutImage(t *testing.T) {
	withFixture(t, func(w *fixture) {
		must(t, os.WriteFile(w.config.Paths.RootDisk+".partial", []byte("from an earlier attempt"), 0o600))
		w.start().wantAlive()
		if disk := w.disk(); len(disk) != 1<<20 || strings.Trim(disk[len(diskMark):], "\x00") != "" {
			t.Errorf("disk of %d bytes, want a blank disk", len(disk))
		}
		if w.images.written != 0 {
			t.Error("wrote an image in SM_RUN")
		}
	})
}

func TestDisk_GrowsAndNeverShrinks(t *testing.T) {
	for name, test := range map[string]struct{ before, asked, after int }{
		"grows":  {1 << 10, 1 << 20, 1 << 20},
		"stays":  {1 << 20, 1 << 20, 1 << 20},
		"bigger": {2 << 20, 1 << 20, 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.config.Spec.RootDiskBytes = uint64(test.asked)
				must(t, os.WriteFile(w.config.Paths.RootDisk, []byte(strings.Repeat("x", test.before)), 0o600))
				w.start().wantAlive()
				disk := w.disk()
				if len(disk) != test.after || disk[len(diskMark):test.before] != strings.Repeat("x", test.before-len(diskMark)) {
					t.Errorf("the disk has %d bytes, want %d with its previous content", len(disk), test.after)
				}
			})
		})
	}
}

func TestBootFiles_AreFetchedAtEveryStart(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.config.Spec.KernelBoot = &vmpb.KernelBoot{
			Kernel: &vmpb.BootFile{Url: "http://boot/kernel"}, Initrd: &vmpb.BootFile{Url: "http://boot/initrd"},
			CommandLine: "quiet",
		}
		for range 2 {
			p := w.start()
			p.term()
			p.wantEnd(vmpb.EndStopped)
		}
		want := []string{"http://boot/kernel", "http://boot/initrd", "http://boot/kernel", "http://boot/initrd"}
		if diff := cmp.Diff(want, w.images.fetched); diff != "" {
			t.Errorf("fetched (-want +got):\n%s", diff)
		}
		kernel := w.machine().Config.Kernel
		for path, want := range map[string]string{kernel.Path: "http://boot/kernel", kernel.Initrd: "http://boot/initrd"} {
			if content, err := os.ReadFile(path); err != nil || string(content) != want {
				t.Errorf("%s contains %q, %v; want %q", path, content, err, want)
			}
		}
		if kernel.Cmdline != "quiet" {
			t.Errorf("command line = %q", kernel.Cmdline)
		}
	})
}

func TestHypervisor_InvalidSpecChangesNothing(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.config.Spec.LeaseMode = vmpb.LeaseMode_LM_FULL_LEASES
		w.start().wantEnd(vmpb.EndInvalidSpec)
		if _, err := os.Stat(w.config.Paths.Run); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("run directory: %v", err)
		}
		if len(w.controller.Reports())+len(w.controller.Runs()) != 0 {
			t.Error("called the controller")
		}
	})
}

// A hypervisor without the UEFI firmware changes nothing.
func TestHypervisor_NeedsUEFI(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.config.Spec.Firmware = vmpb.VMSpec_FIRMWARE_UEFI
		end := w.start().wantEnd(vmpb.EndNoQEMU)
		if !strings.Contains(end.Message, "/missing/OVMF.fd") || !strings.Contains(end.Message, "package ovmf") {
			t.Errorf("message = %q, want one that names the path and the package", end.Message)
		}
		if _, err := os.Stat(w.config.Paths.Run); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("run directory: %v", err)
		}
	})
}

func TestHypervisor_StartsMachineWithUEFI(t *testing.T) {
	for firmware, want := range map[vmpb.VMSpec_Firmware]string{
		vmpb.VMSpec_FIRMWARE_BIOS: "", vmpb.VMSpec_FIRMWARE_UEFI: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
	} {
		t.Run(firmware.String(), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "OVMF.fd")
			must(t, os.WriteFile(path, []byte("abc"), 0o600))
			withFixture(t, func(w *fixture) {
				w.config.Spec.Firmware, w.machines.Firmware = firmware, path
				w.start().wantAlive()
				uefi := w.machine().Config.UEFI
				if want == "" && uefi != nil || want != "" && (uefi == nil || uefi.Path != path || uefi.Digest != want) {
					t.Errorf("UEFI firmware = %+v, want the digest %q", uefi, want)
				}
			})
		})
	}
}

func TestDisk_DirectoryIsRejected(t *testing.T) {
	withFixture(t, func(w *fixture) {
		must(t, os.Mkdir(w.config.Paths.RootDisk, 0o700))
		w.start().wantEnd(vmpb.EndInvalidSpec)
	})
}
