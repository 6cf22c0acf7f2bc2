package drain

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
)

// blocked is an API server whose budget refuses evictions until it is free. Its responses arrive when respond is called.
type blocked struct {
	Evictor
	free  bool
	tasks []func(context.Context)
}

func (b *blocked) Evict(context.Context, types.NamespacedName, types.UID) error {
	if b.free {
		return nil
	}
	refusal := apierrors.NewTooManyRequests("no", 0)
	refusal.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	return refusal
}

func (b *blocked) respond(ctx context.Context) {
	for _, task := range b.tasks {
		task(ctx)
	}
	b.tasks = nil
}

// TestDrainer_EventsConcernDrainWhileItWaits checks that events of volumes and budgets concern a drain while it waits for them:
// until it no longer waits, is forgotten, or drains another node.
func TestDrainer_EventsConcernDrainWhileItWaits(t *testing.T) {
	machine := types.NamespacedName{Namespace: "shoot", Name: "machine"}
	for name, end := range map[string]func(d *Drainer, api *blocked, pass func(node string, after time.Duration)) error{
		"the volume is not detached in time": func(d *Drainer, api *blocked, pass func(string, time.Duration)) error {
			api.free = true
			pass("node", 2*time.Second)
			api.respond(t.Context())
			if len(d.Refused("ns")) > 0 || !slices.Equal(d.Awaiting("pv"), []types.NamespacedName{machine}) {
				t.Errorf("after the eviction, events of budgets concern %v, of the volume %v", d.Refused("ns"), d.Awaiting("pv"))
			}
			err := d.Client.Delete(t.Context(), onNode("web", nil))
			pass("node", time.Hour)
			return err
		},
		"forgotten": func(d *Drainer, _ *blocked, _ func(string, time.Duration)) error {
			d.Forget(machine)
			return nil
		},
		"forgotten before a response": func(d *Drainer, api *blocked, pass func(string, time.Duration)) error {
			pass("node", 2*time.Second)
			d.Forget(machine)
			api.respond(t.Context())
			return nil
		},
		"another node": func(_ *Drainer, _ *blocked, pass func(string, time.Duration)) error {
			pass("other", 0)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := emptyNode("node")
			node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "kubernetes.io/csi/driver^handle-pv"}}
			d := drainerOver(t, node, emptyNode("other"), onNode("web", claiming("data")), claim("data", "pv", ""), persistent("pv", corev1.ReadWriteOnce))
			now, api := testingclock.NewFakePassiveClock(start), &blocked{Evictor: &server{}}
			d.Clock, d.Evictor, d.Wake = now, api, func(types.NamespacedName) {}
			d.Run = func(task func(context.Context)) bool { api.tasks = append(api.tasks, task); return true }
			pass := func(node string, after time.Duration) {
				t.Helper()
				now.SetTime(now.Now().Add(after))
				if _, err := d.Drain(t.Context(), Request{Machine: machine, Node: node, Since: start, Timeout: time.Hour, MaxEvictRetries: 100}); err != nil {
					t.Fatal(err)
				}
			}
			pass("node", 0)
			api.respond(t.Context())
			for event, concerned := range map[string][]types.NamespacedName{"budget": d.Refused("ns"), "volume": d.Awaiting("pv")} {
				if !slices.Equal(concerned, []types.NamespacedName{machine}) {
					t.Errorf("events of the %s concern %v", event, concerned)
				}
			}
			if err := end(d, api, pass); err != nil {
				t.Fatal(err)
			}
			if len(d.awaiting)+len(d.refused) > 0 {
				t.Errorf("at the end, events of volumes concern %v, of budgets %v", d.awaiting, d.refused)
			}
		})
	}
}

// TestDrainer_EventsReadNoOtherDrains checks that handling an event does not read the Pods of other drains.
func TestDrainer_EventsReadNoOtherDrains(t *testing.T) {
	for _, size := range []int{500, 5000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			d := New(Options{})
			for i := range size {
				l := newDrainState("node", start)
				l.machine = types.NamespacedName{Name: fmt.Sprint(i)}
				key := types.NamespacedName{Namespace: fmt.Sprint("ns-", i), Name: "web"}
				l.pods["web"] = &progress{pod: pod{key: key}, refused: true, awaited: []awaited{{volume: fmt.Sprint("pv-", i)}}}
				d.states[l.machine] = l
				d.reindex(l)
				l.pods["web"] = nil // reading it panics
			}
			want := []types.NamespacedName{{Name: "7"}}
			if awaiting, refused := d.Awaiting("pv-7"), d.Refused("ns-7"); !slices.Equal(awaiting, want) || !slices.Equal(refused, want) {
				t.Errorf("events concern %v and %v, want %v", awaiting, refused, want)
			}
		})
	}
}
