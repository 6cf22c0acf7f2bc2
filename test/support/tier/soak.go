package tier

import (
	"cmp"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Environment variables of Soak.
const (
	soakVariable = "MILLWRIGHT_SOAK"
	seedVariable = "MILLWRIGHT_SEED"
)

// Soak returns the duration of a test that performs random operations, and the source of its choices. Without MILLWRIGHT_SOAK, the
// duration is short, and the source is the same in each run. Otherwise, the seed of the source is MILLWRIGHT_SEED, or a new seed
// that Soak logs.
func Soak(t testing.TB, short time.Duration) (length time.Duration, random *rand.Rand) {
	t.Helper()
	text := os.Getenv(soakVariable)
	if text == "" {
		return short, rand.New(rand.NewPCG(1, 0))
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", soakVariable, err)
	}
	seed := cmp.Or(os.Getenv(seedVariable), strconv.FormatInt(time.Now().UnixNano(), 10))
	number, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedVariable, err)
	}
	t.Logf("to repeat these operations, set %s=%s", seedVariable, seed)
	return length, rand.New(rand.NewPCG(number, 0))
}
