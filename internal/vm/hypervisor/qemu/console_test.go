package qemu

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestConsoleOfARealGuestCarriesAnyByte(t *testing.T) {
	tier.All(t)
	_, console := boot(t, echo, echoBanner)
	// All bytes but the one that powers off, and a mark at the end.
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

func TestClientThatDoesNotReadLeavesTheGuestAlone(t *testing.T) {
	tier.All(t)
	p, reading := boot(t, counter, counterBanner)
	stuck, late := attach(t, p), attach(t, p)
	// Much more than the stuck client's queue can hold.
	lines := 6 * console.HistorySize / len("00000000\n")
	_, last := reading.numbers(lines)
	if err := stuck.awaitEnd(); !errors.Is(err, console.ErrSlowClient) {
		t.Errorf("stuck client = %v, want ErrSlowClient", err)
	}
	if first, next := reading.numbers(1000); first != last+1 || next != last+1000 {
		t.Errorf("after %d come %d to %d", last, first, next)
	}
	// It has not read either, and attaches again.
	late.Close()
	back := attach(t, p)
	back.until("\n") // the history may begin within a line
	back.numbers(100)
}

// awaitEnd reads the rest and returns the reason of the end.
func (r *reader) awaitEnd() error {
	for {
		if _, err := r.Next(bounded(r.t)); err != nil {
			return err
		}
	}
}
