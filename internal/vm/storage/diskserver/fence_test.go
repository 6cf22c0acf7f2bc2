package diskserver_test

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// The regions of the disk to which the guests with the letters a and b write, in bytes.
const (
	regionBytes = 2048 * 512
	regionA     = 1 << 20
)

// bootSector returns the boot sector of a guest from package hypervisor.
func bootSector(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "hypervisor", "testdata", name+".img"))
	must(t, err)
	return content
}

// region returns the region of the disk to which a guest writes.
func region(t *testing.T, path string, at int64) []byte {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	defer func() { _ = file.Close() }()
	content := make([]byte, regionBytes)
	_, err = file.ReadAt(content, at)
	must(t, err)
	return content
}

// All processes of a hypervisor are paused while its guest writes, as in a frozen container. Its token is revoked,
// and another hypervisor starts. When the first hypervisor continues, none of its writes arrives, and its guest
// stops.
func TestRevoke_StoppedHypervisorCannotWriteLater(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("runs real QEMU machines")
	}
	t.Attr("fault", "All processes of a hypervisor, including QEMU, are paused, and continue while another hypervisor runs the guest with the next fencing token")
	s := newInstallation(t).serve(newDisk(t, bootSector(t, "twin")))
	s.open(7, first)
	old := startHolder(t, holding{Files: s.files(peer(first)), Pod: first, To: s.at, Token: 7})
	old.send("a")
	old.counts(100)

	old.signal(syscall.SIGSTOP)
	must(t, s.volume().Revoke(bounded(t), 7))
	before := region(t, s.disk, regionA)
	if bytes.Equal(before, make([]byte, regionBytes)) {
		t.Fatal("the first guest has not written anything")
	}
	s.open(8, second)
	next := startHolder(t, holding{Files: s.files(peer(second)), Pod: second, To: s.at, Token: 8})
	next.send("b")
	next.counts(100)

	old.signal(syscall.SIGCONT)
	for range 3 {
		old.stopsForRevocation()
		old.send(continueGuest) // a hypervisor continues a guest whose storage failed
	}
	next.counts(100)
	if !bytes.Equal(before, region(t, s.disk, regionA)) {
		t.Error("writes of the revoked token have arrived")
	}
	if failure := next.failure(); failure != "" {
		t.Errorf("the second guest failed: %s", failure)
	}
	t.Attr("outcome", "No write of the paused hypervisor reaches the disk; its guest is stopped and cannot be resumed; the other guest is not affected")
}
