// Package tier says in which runs a test takes part.
//
// "make test" runs every test that says nothing else. A test that calls [All] at its top runs in
// "make test-all" only. What takes longer than that belongs to targets of its own, such as "make crash":
// there, [Exhaustive] is true.
//
// Nothing is chosen at random: a test belongs to one tier, and plays the same in each run.
package tier

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Variable names the tier that runs: empty for that of "make test", or one of the values below.
const Variable = "MILLWRIGHT_TIER"

const (
	all        = "all"
	exhaustive = "exhaustive"
)

// All skips a test, or a subtest, that does not run in "make test".
func All(t testing.TB) {
	t.Helper()
	if !isAll() {
		t.Skipf("runs in make test-all (%s=%s)", Variable, all)
	}
}

// Exhaustive reports whether a test that plays a fixed part of many cases is to play all of them.
func Exhaustive() bool { return current() == exhaustive }

func isAll() bool { return current() != "" }

func current() string {
	switch tier := os.Getenv(Variable); tier {
	case "", all, exhaustive:
		return tier
	default:
		panic(fmt.Sprintf("%s=%s: want %s, %s or nothing", Variable, tier, all, exhaustive))
	}
}

// Check is rapid.Check with a fixed seed, and ten times as many checks in "make test-all". The flags -rapid.seed and
// -rapid.checks take precedence.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	fixed.Do(func() {
		checks := 100
		if isAll() {
			checks = 1000
		}
		setDefault(t, "rapid.seed", 1)
		setDefault(t, "rapid.checks", checks)
	})
	rapid.Check(t, property)
}

// fixed is done before the first check, since others may run in parallel.
var fixed sync.Once

func setDefault(t *testing.T, name string, value int) {
	t.Helper()
	f := flag.Lookup(name)
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(strconv.Itoa(value)); err != nil {
		t.Error(err)
	}
}
