package qemu

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestConsole_CarriesAnyByte(t *testing.T) {
	tier.All(t)
	_, console := boot(t, echo, echoBanner)
	// All bytes except the one that powers off, followed by a marker.
	message := []byte{}
	for b := range 256 {
		if byte(b) != powerOffKey[0] {
			message = append(message, byte(b))
		}
	}
	must(t, console.Write(bounded(t), append(message, "END"...)))
	if got := console.until("END"); !bytes.Equal(message, got) {
		t.Errorf("echo (-want +got):\n%s", cmp.Diff(message, got))
	}
}

func TestConsole_ShowsThatDiskIsNotBootable(t *testing.T) {
	tier.All(t)
	boot(t, nil, "Boot failed: not a bootable disk")
}

func TestConsole_StuckClientDoesNotBlockGuest(t *testing.T) {
	tier.All(t)
	p, reading := boot(t, counter, counterBanner)
	stuck, late := attach(t, p), attach(t, p)
	// Much more than the queue of the stuck client can hold.
	lines := 6 * console.HistorySize / len("00000000\n")
	_, last := reading.numbers(lines)
	if err := stuck.awaitEnd(); !errors.Is(err, console.ErrSlowClient) {
		t.Errorf("stuck client = %v, want ErrSlowClient", err)
	}
	if first, next := reading.numbers(1000); first != last+1 || next != last+1000 {
		t.Errorf("numbers %d are followed by %d to %d", last, first, next)
	}
	// The other client has not read either and attaches again.
	late.Close()
	back := attach(t, p)
	back.until("\n") // the history may start within a line
	back.numbers(100)
}

// awaitEnd reads the remaining output and returns the reason for its end.
func (r *reader) awaitEnd() error {
	for {
		if _, err := r.Next(bounded(r.t)); err != nil {
			return err
		}
	}
}
