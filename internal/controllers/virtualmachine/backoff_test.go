package virtualmachine

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestBackoff(t *testing.T) {
	b, now := backoff{}, time.Unix(1000, 0)
	next := func(pod string, generation int64, permanent bool) time.Duration {
		return b.wait(attempt{pod: types.UID(pod), generation: generation, permanent: permanent}, now)
	}
	want := func(what string, got, want time.Duration) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	for i, seconds := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		want("doubling", next(string(rune('a'+i)), 1, false), seconds*time.Second)
	}
	now = now.Add(45 * time.Second)
	want("the same pod again", next("h", 1, false), 15*time.Second)
	want("a changed spec", next("h", 2, false), 0)
	want("first failure of a changed spec", next("i", 2, false), time.Second)
	want("a permanent reason", next("j", 2, true), time.Minute)
	b.startedAt = now
	now = now.Add(4 * time.Minute)
	want("not long enough", next("k", 2, false), 4*time.Second)
	b.startedAt = now
	now = now.Add(5 * time.Minute)
	want("after a steady run", next("l", 2, false), time.Second)
	b = backoff{}
	want("lost state", next("m", 2, false), time.Second)
}
