package hypervisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/gptdisk"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// afterBoot skips the output of the firmware and the banner of the guest.
func (c *counting) afterBoot() {
	c.t.Helper()
	for line := ""; line != "boot"; {
		var found bool
		if line, found = c.line(); !found {
			c.t.Fatal("the console was closed before the guest booted")
		}
	}
}

// A guest boots by UEFI from an EFI system partition, and moves to a hypervisor with the same firmware. A hypervisor
// with another build of the firmware rejects it, and the guest keeps running.
func TestMigration_UEFI(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	firmware, err := os.ReadFile(qemu.DefaultUEFI)
	if err != nil {
		t.Fatalf("%v; run hack/install-qemu.sh", err)
	}
	program, err := os.ReadFile(filepath.Join("testdata", "ticker.efi"))
	must(t, err)
	h.data, h.firmware, h.memory, h.size = nil, vmpb.VMSpec_FIRMWARE_UEFI, 64<<20, gptdisk.BootBytes
	source := h.start("web-1", vmpb.VMSpec_SM_RUN, func(m *member) { gptdisk.WriteBoot(t, m.disk, program) })
	here := source.counts()
	here.afterBoot()
	here.keepsRunning()

	h.uefi = filepath.Join(t.TempDir(), "OVMF.fd")
	must(t, os.WriteFile(h.uefi, append(firmware[:len(firmware)-1], ^firmware[len(firmware)-1]), 0o600))
	other := h.target("web-2")
	h.names(func(question int) *member {
		if question > 0 {
			return nil
		}
		return other
	})
	h.controller.Change(func(a *authority) { a.migrate = true })
	if message := h.awaitPhase(failed).GetMigration().GetMessage(); strings.Count(message, "UEFI firmware sha256:") != 2 {
		t.Errorf("message = %q, want one that names both firmwares", message)
	}
	h.controller.Change(func(a *authority) { a.migrate = false })
	here.keepsRunning()
	other.wantAlive()

	h.uefi = ""
	_, there := h.follows(source, here, "web-3")
	there.keepsRunning()
}
