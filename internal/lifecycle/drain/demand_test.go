package drain

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var drained = types.NamespacedName{Namespace: "shop", Name: "machine"}

// demanding is a Drainer whose cache is filled on demand, with a node that has a Pod and a volume.
type demanding struct {
	*testing.T
	*Drainer
	clock *testingclock.FakeClock
	// filled and problem are the result of Options.Use, and wake is its last argument.
	filled  bool
	problem error
	wake    func()
	woken   []types.NamespacedName
}

func newDemanding(t *testing.T) *demanding {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "volume"}}
	d := &demanding{T: t, Drainer: drainerOver(t, node, onNode("pod", nil)), clock: testingclock.NewFakeClock(start)}
	d.Client = observing(d.Client, func(kind string, _ client.ObjectKey) error {
		if !d.filled && kind != "*v1.Node" {
			t.Errorf("%s is read from a cache that is not filled", kind)
		}
		return nil
	})
	d.Options.Clock, d.Options.Evictor = d.clock, &server{}
	d.Options.Wake = func(machine types.NamespacedName) { d.woken = append(d.woken, machine) }
	d.Options.Use = func(_ types.NamespacedName, wake func()) (bool, error) {
		d.wake = wake
		return d.filled, d.problem
	}
	return d
}

// pass runs a pass of a drain.
func (d *demanding) pass(force Force, timeout time.Duration) Report {
	d.Helper()
	made, err := d.Drain(d.Context(), Request{Machine: drained, Node: "node", Since: start, Timeout: timeout, Force: force})
	if err != nil {
		d.Fatal(err)
	}
	return made
}

// TestDrain_WaitsForCache checks that a drain reads nothing before the cache is filled, reports why, and then begins.
func TestDrain_WaitsForCache(t *testing.T) {
	d := newDemanding(t)
	d.problem = errors.New("forbidden")
	made := d.pass(NotForced, time.Hour)
	if made.Done || made.Wait != cacheRetry || made.Summary() != "the lists of pods and volumes of the target cluster" || !strings.Contains(made.Problem(), "forbidden") {
		t.Errorf("a drain without a cache: %+v", made)
	}
	if empty, err := d.IsEmpty(t.Context(), "node"); empty || err != nil {
		t.Errorf("a node counts as empty without a cache: %v, %v", empty, err)
	}
	d.pass(NotForced, time.Hour)
	d.wake()
	if len(d.woken) != 1 || d.woken[0] != drained {
		t.Errorf("woken: %v", d.woken)
	}
	d.filled = true
	if made = d.pass(NotForced, time.Hour); len(made.Started) != 1 || made.Started[0].Forced {
		t.Errorf("a drain with a filled cache: %+v", made)
	}
}

// TestDrain_GivesUpOnCacheOnlyForUsers checks that only a drain that a user forces proceeds without a cache, and only after a
// while.
func TestDrain_GivesUpOnCacheOnlyForUsers(t *testing.T) {
	for name, tc := range map[string]struct {
		force   Force
		timeout time.Duration
		want    bool
	}{
		"not forced":            {NotForced, time.Hour, false},
		"time limit":            {ForceDeadline, time.Hour, false},
		"node not ready":        {ForceNotReady, time.Hour, false},
		"read-only file system": {ForceReadonlyFilesystem, time.Hour, false},
		"requested":             {ForceRequested, time.Hour, true},
		"time limit of zero":    {ForceDeadline, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDemanding(t)
			d.pass(tc.force, tc.timeout)
			d.clock.Step(cachePatience - 1)
			if made := d.pass(tc.force, tc.timeout); made.Done {
				t.Errorf("gave up early: %+v", made)
			}
			d.clock.Step(24 * time.Hour)
			if made := d.pass(tc.force, tc.timeout); made.Done != tc.want || made.Force != tc.force {
				t.Errorf("%+v, want done %t", made, tc.want)
			}
			if done, err := d.DeleteAttachments(t.Context(), "node"); !done || err != nil {
				t.Errorf("deleting the attachments: %v, %v", done, err)
			}
		})
	}
}

// TestDrain_TimeLimitBeginsWhenCacheIsFilled checks that no drain is forced because the cache was filled late.
func TestDrain_TimeLimitBeginsWhenCacheIsFilled(t *testing.T) {
	const limit = 10 * time.Minute
	d := newDemanding(t)
	d.pass(NotForced, limit)
	d.clock.Step(time.Hour)
	d.pass(ForceDeadline, limit)
	d.filled = true
	for _, want := range []Force{NotForced, NotForced, ForceDeadline} {
		if made := d.pass(ForceDeadline, limit); made.Force != want {
			t.Errorf("%v after the cache was filled: forced because %q, want %q", d.clock.Since(start.Add(time.Hour)), made.Force, want)
		}
		d.clock.Step(limit / 2)
	}

	d = newDemanding(t)
	d.pass(NotForced, limit)
	d.clock.Step(time.Second)
	d.filled = true
	if made := d.pass(ForceDeadline, limit); made.Force != ForceDeadline {
		t.Errorf("the cache was filled soon, but the drain is not forced: %+v", made)
	}
}

// TestDrain_UsesCacheRegularly checks that the cache is used again in time although a drain waits only for events.
func TestDrain_UsesCacheRegularly(t *testing.T) {
	d := newDemanding(t)
	d.filled = true
	d.Options.Run = func(func(context.Context)) bool { return true }
	if made := d.pass(NotForced, time.Hour); made.Done || made.Wait != UseInterval {
		t.Errorf("next pass after %v: %+v", made.Wait, made)
	}
	d.Options.Use = nil
	if made := d.pass(NotForced, time.Hour); made.Done || made.Wait != 0 {
		t.Errorf("with a cache that is always filled, next pass after %v: %+v", made.Wait, made)
	}
}
