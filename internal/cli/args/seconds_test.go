package args

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestSeconds_AcceptBareNumbers checks that a bare number means seconds, and that other values are parsed as before.
func TestSeconds_AcceptBareNumbers(t *testing.T) {
	cases := map[string]time.Duration{
		"1": time.Second, "0": 0, "-3": -3 * time.Second, "1.5": 1500 * time.Millisecond, "1m": time.Minute, "300ms": 300 * time.Millisecond,
		"5n": -1, "": -1, "soon": -1, "inf": -1, "0x10": -1, "1e3": -1, "1 ": -1,
	}
	for text, want := range cases {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		got := flags.Duration("period", -1, "")
		name := flags.String("name", "", "")
		BareSeconds(flags)
		BareSeconds(flags)
		err := flags.Parse([]string{"--period=" + text, "--name=7"})
		if refused := want == -1; (err != nil) != refused || !refused && *got != want {
			t.Errorf("%q is %v, %v, want %v", text, *got, err, want)
		}
		if err == nil && *name != "7" {
			t.Errorf("a string became %q", *name)
		}
	}
}
