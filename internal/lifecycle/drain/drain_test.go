package drain

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestNew_Strategy(t *testing.T) {
	for given, want := range map[Strategy]Strategy{"": Serial, Serial: Serial, Independent: Independent} {
		if got := New(Options{Strategy: given}).Strategy; got != want {
			t.Errorf("%q becomes %q, want %q", given, got, want)
		}
	}
}

func TestDrainer_NodeIsGone(t *testing.T) {
	report, err := drainerOver(t).Drain(t.Context(), Request{Node: "node", Force: ForceDeadline})
	if err != nil || !report.Done || !report.NodeGone || report.Force != ForceDeadline {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestDrainer_UnreadableCache checks that a node whose pods cannot be read does not count as drained.
func TestDrainer_UnreadableCache(t *testing.T) {
	d := drainerOver(t, emptyNode("node"))
	d.Client = failing(d.Client, "*v1.PodList")
	if report, err := d.Drain(t.Context(), Request{Node: "node"}); !errors.Is(err, errUnavailable) || report.Done {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestDrainer_ForcedDrainIsNotConfirmed checks that a forced drain does not wait for the API server.
func TestDrainer_ForcedDrainIsNotConfirmed(t *testing.T) {
	d, api := drainerOver(t, emptyNode("node")), &server{failure: errUnavailable}
	d.Evictor = api
	report, err := d.Drain(t.Context(), Request{Node: "node", Force: ForceRequested})
	if err != nil || !report.Done || len(api.asked) > 0 {
		t.Errorf("%+v, %v, %d requests", report, err, len(api.asked))
	}
}

// TestDrainer_StateOfAnotherNode checks that nothing remembered of one node applies to another one.
func TestDrainer_StateOfAnotherNode(t *testing.T) {
	d := drainerOver(t)
	first, _ := d.stateOf(Request{Node: "node"})
	again, _ := d.stateOf(Request{Node: "node"})
	other, _ := d.stateOf(Request{Node: "other"})
	if first != again || other == first || other.node != "other" {
		t.Errorf("states of node %s, %s and %s", first.node, again.node, other.node)
	}
}

// TestDrainer_MachinesOfAnEvent checks which drains a VolumeAttachment and a PodDisruptionBudget concern.
func TestDrainer_MachinesOfAnEvent(t *testing.T) {
	d := drainerOver(t)
	add := func(machine, namespace string, p progress) {
		p.key = types.NamespacedName{Namespace: namespace, Name: "pod"}
		l := &drainState{machine: types.NamespacedName{Name: machine}, pods: map[types.UID]*progress{"uid": &p}}
		d.states[l.machine] = l
		d.reindex(l)
	}
	v := []awaited{{volume: "v"}}
	add("refused", "ns", progress{refused: true})
	add("refused-elsewhere", "other", progress{refused: true})
	add("waiting", "ns", progress{awaited: v})
	add("settled", "ns", progress{awaited: v, settled: true})
	add("waiting-for-another", "ns", progress{awaited: []awaited{{volume: "w"}}})
	if diff := cmp.Diff([]types.NamespacedName{{Name: "waiting"}}, d.Awaiting("v")); diff != "" {
		t.Errorf("awaiting v (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]types.NamespacedName{{Name: "refused"}}, d.Refused("ns")); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
}

func TestForceDue(t *testing.T) {
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, ago time.Duration) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, LastTransitionTime: metav1.NewTime(start.Add(-ago))}
	}
	notReady := condition(corev1.NodeReady, corev1.ConditionFalse, 3*time.Minute)
	readOnly := condition(readonlyFilesystem, corev1.ConditionTrue, 4*time.Minute)
	for name, tc := range map[string]struct {
		conditions []corev1.NodeCondition
		want       time.Duration
	}{
		"just became Ready":      {[]corev1.NodeCondition{condition(corev1.NodeReady, corev1.ConditionTrue, time.Minute)}, 0},
		"already forced":         {[]corev1.NodeCondition{condition(corev1.NodeReady, corev1.ConditionFalse, time.Hour)}, 0},
		"the second is earlier":  {[]corev1.NodeCondition{notReady, readOnly}, time.Minute + time.Second},
		"the first is earlier":   {[]corev1.NodeCondition{readOnly, notReady}, time.Minute + time.Second},
		"not Ready, long enough": {[]corev1.NodeCondition{condition(corev1.NodeReady, corev1.ConditionFalse, time.Hour), readOnly}, time.Minute + time.Second},
	} {
		if got := ForceDue(tc.conditions, start); got != tc.want {
			t.Errorf("%s: due in %v, want %v", name, got, tc.want)
		}
	}
}

// failing makes reads of a type fail, such as *v1.PodList.
func failing(of client.Client, kind string) client.Client {
	return observing(of, func(read string, _ client.ObjectKey) error {
		if read == kind {
			return errUnavailable
		}
		return nil
	})
}

// TestDrainer_IsEmpty checks that only Pods that a drain evicts count, and that a node whose Pods cannot be read does not
// count as empty.
func TestDrainer_IsEmpty(t *testing.T) {
	staying := []client.Object{
		onNode("daemon", owned("DaemonSet", "apps/v1")),
		onNode("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "other" }),
	}
	if empty, err := drainerOver(t, staying...).IsEmpty(t.Context(), "node"); err != nil || !empty {
		t.Errorf("with Pods that stay: %v, %v", empty, err)
	}
	d := drainerOver(t, append(staying, onNode("web", nil))...)
	if empty, err := d.IsEmpty(t.Context(), "node"); err != nil || empty {
		t.Errorf("with a Pod to evict: %v, %v", empty, err)
	}
	d = drainerOver(t)
	d.Client = failing(d.Client, "*v1.PodList")
	if _, err := d.IsEmpty(t.Context(), "node"); !errors.Is(err, errUnavailable) {
		t.Errorf("with an unreadable cache: %v", err)
	}
}
