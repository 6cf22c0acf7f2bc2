package messages

import (
	"fmt"
	"testing"
)

func TestMachines_Grammar(t *testing.T) {
	for n, want := range map[int32]string{
		0: "0 machines: are, have",
		1: "1 machine: is, has",
		2: "2 machines: are, have",
	} {
		if got := fmt.Sprintf("%s: %s, %s", Machines(n), Are(n), Have(n)); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
