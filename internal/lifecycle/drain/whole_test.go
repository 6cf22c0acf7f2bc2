package drain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// never is longer than any drain.
const never = 1000 * time.Hour

// cluster is the speed of a cluster in a drain. The API server of the story grants every request.
type cluster struct {
	// terminates is how long evicted Pods take to terminate, detach how long their volumes then take to be
	// detached, and reattach how long they take to be attached to another node.
	terminates, detach, reattach time.Duration
}

// play simulates a whole drain in steps of one second. It returns the requests with their times, and the
// duration of the drain. It gives up after a day.
func (s *story) play(c cluster) (requests []string, took time.Duration) {
	s.t.Helper()
	due := map[string]time.Time{} // by "gone NAME", "detach VOLUME", "reattach VOLUME"
	for ; s.facts.now.Sub(start) < 24*time.Hour; s.later(time.Second) {
		s.happen(due, c)
		if s.rules.force == NotForced && !s.facts.now.Before(start.Add(s.rules.timeout)) {
			s.rules.force = ForceDeadline
		}
		ops, made := pass(s.facts, s.rules, s.l)
		for _, op := range ops {
			name, terminates := op.pod.key.Name, c.terminates
			p := s.l.pods[op.pod.uid]
			p.calling, p.sent, p.last, p.removed = false, s.facts.now, s.facts.now, op.force
			s.change(name, func(p *pod) { p.leaving, p.killed = true, op.force })
			at := s.facts.now.Sub(start)
			if op.force {
				name, terminates = "force:"+name, 0
			}
			due["gone "+op.pod.key.Name] = s.facts.now.Add(terminates)
			requests = append(requests, fmt.Sprintf("%v %s", at, name))
		}
		if made.Done {
			return requests, s.facts.now.Sub(start)
		}
	}
	s.t.Fatal("the drain never completes")
	return nil, 0
}

// happen applies the changes of the cluster that are due.
func (s *story) happen(due map[string]time.Time, c cluster) {
	for progress := true; progress; {
		progress = false
		for what, at := range due {
			if at.After(s.facts.now) {
				continue
			}
			delete(due, what)
			progress = true
			switch kind, name, _ := strings.Cut(what, " "); kind {
			case "gone":
				for _, volume := range s.podNamed(name).volumes {
					if s.users(volume) == 1 {
						due["detach "+volume] = at.Add(c.detach)
					}
				}
				s.gone(name)
			case "detach":
				s.detach(name)
				due["reattach "+name] = at.Add(c.reattach)
			case "reattach":
				s.facts.elsewhere[name] = true
			}
		}
	}
}

func (s *story) podNamed(name string) pod {
	for _, p := range s.facts.pods {
		if p.uid == types.UID(name) {
			return p
		}
	}
	return pod{}
}

// users returns the number of Pods on the node that use a volume.
func (s *story) users(volume string) int {
	n := 0
	for _, p := range s.facts.pods {
		for _, v := range p.volumes {
			if v == volume {
				n++
			}
		}
	}
	return n
}

// TestDrain_RandomScenariosComplete checks, for mixtures of Pods and volumes, which requests are made when, and how long the
// drain takes. The drain must not wait longer than necessary.
func TestDrain_RandomScenariosComplete(t *testing.T) {
	quick := cluster{terminates: 5 * time.Second, detach: 10 * time.Second, reattach: 20 * time.Second}
	const round = 35 * time.Second // the sum of the three
	cases := map[string]struct {
		reason  string
		given   func(*story)
		cluster cluster
		want    []string
		took    time.Duration
	}{
		"no pods": {"there is nothing to do", func(*story) {}, quick, nil, 0},
		"without volumes": {
			"they leave at the same time", func(s *story) { s.pod("a", 0).pod("b", 0).pod("c", 0) }, quick,
			[]string{"0s a", "0s b", "0s c"}, 5 * time.Second,
		},
		"one exclusive volume": {
			"its move is awaited completely", func(s *story) { s.pod("a", 0, "v") }, quick,
			[]string{"0s a"}, round,
		},
		"two exclusive volumes in one pod": {
			"they go at the same time", func(s *story) { s.pod("a", 0, "v", "w") }, quick,
			[]string{"0s a"}, round,
		},
		"an exclusive volume in each of three pods": {
			"one after another, the most important first", func(s *story) { s.pod("a", 1, "u").pod("b", 3, "v").pod("c", 2, "w") }, quick,
			[]string{"0s b", "35s c", "1m10s a"}, 3 * round,
		},
		"two exclusive volumes in each of two pods": {
			"the number of volumes does not matter", func(s *story) { s.pod("a", 2, "u", "v").pod("b", 1, "w", "x") }, quick,
			[]string{"0s a", "35s b"}, 2 * round,
		},
		"a shared volume": {
			"a volume that another pod keeps attached is not awaited", func(s *story) { s.pod("a", 2, "v").pod("b", 1, "v") }, quick,
			[]string{"0s a", "1s b"}, 6 * time.Second,
		},
		"shared and exclusive volumes": {
			"only the exclusive one of a pod is awaited", func(s *story) { s.pod("a", 3, "shared", "u").pod("b", 2, "shared").pod("c", 1, "w") }, quick,
			[]string{"0s a", "35s b", "36s c"}, 36*time.Second + round,
		},
		"with and without volumes": {
			"neither group waits for the other", func(s *story) { s.pod("a", 0).pod("b", 0).pod("c", 0, "v").pod("d", -1, "w") }, quick,
			[]string{"0s a", "0s b", "0s c", "35s d"}, 2 * round,
		},
		"all kinds": {
			"", func(s *story) {
				s.pod("plain", 0).pod("a", 9, "u").pod("b", 8, "shared").pod("c", 7, "shared", "w")
			}, quick,
			[]string{"0s plain", "0s a", "35s b", "36s c"}, 36*time.Second + round,
		},
		"another provider's volumes": {
			"volumes without an ID are not awaited", func(s *story) {
				s.pod("a", 2, "u").pod("b", 1, "v")
				s.facts.volumes["u"], s.facts.volumes["v"] = volume{}, volume{}
			}, quick,
			[]string{"0s a", "1s b"}, 6 * time.Second,
		},
		"long grace periods": {
			"a pod may use its whole grace period", func(s *story) {
				s.pod("a", 0).pod("b", 0, "v")
				for _, name := range []string{"a", "b"} {
					s.change(name, func(p *pod) { p.grace = 20 * time.Minute })
				}
			}, cluster{terminates: 19 * time.Minute, detach: 10 * time.Second, reattach: 20 * time.Second},
			[]string{"0s a", "0s b"}, 19*time.Minute + 30*time.Second,
		},
		"volumes that are never detached": {
			"each pod waits for its grace period and the detach timeout", func(s *story) { s.pod("a", 2, "u").pod("b", 1, "v") },
			cluster{terminates: 5 * time.Second, detach: never},
			[]string{"0s a", "2m30s b"}, 5 * time.Minute,
		},
		"volumes that are not attached again": {
			"each pod waits for the reattach timeout", func(s *story) { s.pod("a", 2, "u").pod("b", 1, "v") },
			cluster{terminates: 5 * time.Second, detach: 10 * time.Second, reattach: never},
			[]string{"0s a", "1m45s b"}, 210 * time.Second,
		},
		"pods that never terminate": {
			"until the drain timeout expires", func(s *story) { s.pod("a", 0).pod("b", 0, "v") },
			cluster{terminates: never},
			[]string{"0s a", "0s b", "2h0m0s force:a", "2h0m0s force:b"}, 2*time.Hour + time.Second,
		},
		"forced, without volumes": {
			"no evictions, and no waiting", func(s *story) { s.pod("a", 0).pod("b", 0).rules.force = ForceRequested }, quick,
			[]string{"0s force:a", "0s force:b"}, time.Second,
		},
		"forced, with volumes": {
			"neither their order nor their volumes matter", func(s *story) { s.pod("a", 2, "u", "v").pod("b", 1, "w").pod("c", 0, "w").rules.force = ForceNotReady }, quick,
			[]string{"0s force:a", "0s force:b", "0s force:c"}, time.Second,
		},
		"forced, all kinds": {
			"", func(s *story) {
				s.pod("plain", 0).pod("a", 9, "u").pod("b", 8, "shared").pod("c", 7, "shared", "w").rules.force = ForceReadonlyFilesystem
			}, cluster{terminates: never, detach: never, reattach: never},
			[]string{"0s force:a", "0s force:b", "0s force:c", "0s force:plain"}, time.Second,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			tc.given(s)
			got, took := s.play(tc.cluster)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: requests (-want +got):\n%s", tc.reason, diff)
			}
			if took != tc.took {
				t.Errorf("%s: it took %v, want %v", tc.reason, took, tc.took)
			}
		})
	}
}
