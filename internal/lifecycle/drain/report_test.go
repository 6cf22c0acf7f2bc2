package drain

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestWaiting_String(t *testing.T) {
	pod := types.NamespacedName{Namespace: "ns", Name: "a"}
	for want, waiting := range map[string]Waiting{
		"pod disruption budget ns/pdb to allow the eviction of pod ns/a": {For: ForBudget, Pod: pod, Object: "ns/pdb"},
		"a pod disruption budget to allow the eviction of pod ns/a":      {For: ForBudget, Pod: pod},
		"volume v of pod ns/a to be detached":                            {For: ForDetach, Pod: pod, Object: "v"},
	} {
		if got := waiting.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := (Report{Waiting: []Waiting{waiting}}).Summary(); got != want {
			t.Errorf("summary %q, want %q", got, want)
		}
	}
}

func TestReport_Forced(t *testing.T) {
	r := Report{Started: []Action{{Pod: types.NamespacedName{Name: "evicted"}}, {Pod: types.NamespacedName{Name: "deleted"}, Forced: true, Reason: "why"}}}
	if got := r.Forced(); got != "/deleted (why)" {
		t.Errorf("%q", got)
	}
}

func TestReport_ProblemsAreShortened(t *testing.T) {
	var r Report
	for _, text := range []string{"a", "b", "c", "d", "e"} {
		r.Failed = append(r.Failed, Failure{Text: text})
	}
	if got := r.Problem(); got != "a; b; c; d; e" {
		t.Errorf("five problems: %q", got)
	}
	r.Failed = append(r.Failed, Failure{Text: "f"})
	if got := r.Problem(); got != "a; b; c; d; e; and 1 more" {
		t.Errorf("six problems: %q", got)
	}
}

// TestReport_WaitIsTheEarliest checks that the next pass is due when the first wait expires, in any order.
func TestReport_WaitIsTheEarliest(t *testing.T) {
	at := func(name string, after time.Duration) Waiting {
		w := Waiting{For: ForPod, Pod: types.NamespacedName{Name: name}}
		if after > 0 {
			w.Next = start.Add(after)
		}
		return w
	}
	for name, tc := range map[string]struct {
		waiting []Waiting
		want    time.Duration
	}{
		"the first":     {[]Waiting{at("a", time.Second), at("b", time.Minute), at("c", 0)}, time.Second},
		"the second":    {[]Waiting{at("a", time.Minute), at("b", time.Second), at("c", time.Hour)}, time.Second},
		"only an event": {[]Waiting{at("a", 0), at("b", 0)}, 0},
		"nothing":       {nil, 0},
	} {
		m := &reporter{Report: Report{Waiting: tc.waiting}, f: facts{now: start}}
		m.finish()
		if m.Wait != tc.want || m.Done != (len(tc.waiting) == 0) {
			t.Errorf("%s: done %t, wait %v, want %v", name, m.Done, m.Wait, tc.want)
		}
	}
}
