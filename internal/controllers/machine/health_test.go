package machine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

var (
	notReady      = condition("Ready", "False")
	lostTouch     = condition("Ready", "Unknown")
	joinedNow     = statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, "Machine m1 successfully joined the cluster"}
	rejoined      = statusFields{v1alpha1.MachineRunning, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateSuccessful, "Machine m1 successfully re-joined the cluster"}
	turnedUnknown = statusFields{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "Machine m1 is unhealthy - changing MachinePhase to Unknown"}
	nodeWent      = statusFields{v1alpha1.MachineUnknown, v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, "Node object went missing"}
	failedToJoin  = statusFields{v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, "Machine m1 failed to join the cluster in 20 minutes"}
)

// unchanged returns the status that inPhase writes.
func unchanged(phase v1alpha1.MachinePhase) statusFields {
	return statusFields{phase, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, descriptionCreating}
}

// TestMachine_PhaseFollowsNode checks which states of a node change the phase, and which do not.
func TestMachine_PhaseFollowsNode(t *testing.T) {
	const (
		pending = v1alpha1.MachinePending
		running = v1alpha1.MachineRunning
		unknown = v1alpha1.MachineUnknown
		failed  = v1alpha1.MachineFailed
	)
	critical := corev1.Taint{Key: v1alpha1.TaintKeyCriticalComponentsNotReady, Effect: corev1.TaintEffectNoSchedule}
	with := func(conditions ...corev1.NodeCondition) []corev1.NodeCondition { return conditions }
	only := func(list string) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) {
			m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{NodeConditions: &list}
		}
	}
	cases := map[string]struct {
		phase      v1alpha1.MachinePhase
		machine    func(*v1alpha1.Machine)
		absent     bool
		conditions []corev1.NodeCondition
		taints     []corev1.Taint
		after      time.Duration
		want       statusFields
	}{
		"Pending, ready":                         {phase: pending, conditions: with(ready), want: joinedNow},
		"Pending, registered":                    {phase: pending, conditions: nil, want: unchanged(pending)},
		"Pending, not ready":                     {phase: pending, conditions: with(notReady), want: unchanged(pending)},
		"Pending, critical components missing":   {phase: pending, conditions: with(ready), taints: []corev1.Taint{critical}, want: unchanged(pending)},
		"Pending, other taint":                   {phase: pending, conditions: with(ready), taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}, want: joinedNow},
		"Pending, absent":                        {phase: pending, absent: true, want: unchanged(pending)},
		"Pending, absent at the timeout":         {phase: pending, absent: true, after: creationTimeout, want: failedToJoin},
		"Pending, not ready at the timeout":      {phase: pending, conditions: with(notReady), after: creationTimeout, want: failedToJoin},
		"Pending, critical taint at the timeout": {phase: pending, conditions: with(ready), taints: []corev1.Taint{critical}, after: creationTimeout, want: failedToJoin},
		"Pending, ready at the timeout":          {phase: pending, conditions: with(ready), after: creationTimeout, want: joinedNow},

		"Running, ready":                    {phase: running, conditions: with(ready), want: unchanged(running)},
		"Running, not ready":                {phase: running, conditions: with(notReady), want: turnedUnknown},
		"Running, Ready Unknown":            {phase: running, conditions: with(lostTouch), want: turnedUnknown},
		"Running, listed condition True":    {phase: running, conditions: with(ready, condition("DiskPressure", "True")), want: turnedUnknown},
		"Running, listed condition Unknown": {phase: running, conditions: with(ready, condition("NetworkUnavailable", "Unknown")), want: turnedUnknown},
		"Running, listed condition False":   {phase: running, conditions: with(ready, condition("DiskPressure", "False")), want: unchanged(running)},
		"Running, other condition True":     {phase: running, conditions: with(ready, condition("MemoryPressure", "True")), want: unchanged(running)},
		"Running, absent":                   {phase: running, absent: true, want: nodeWent},
		"Running, critical taint again":     {phase: running, conditions: with(ready), taints: []corev1.Taint{critical}, want: unchanged(running)},
		"Running, past creation timeout":    {phase: running, conditions: with(ready), after: 2 * creationTimeout, want: unchanged(running)},

		"own list: its condition counts":     {phase: running, machine: only("Tired,Old"), conditions: with(ready, condition("Old", "True")), want: turnedUnknown},
		"own list: the flag's does not":      {phase: running, machine: only("Tired"), conditions: with(ready, condition("DiskPressure", "True")), want: unchanged(running)},
		"own list: empty, and Ready matters": {phase: running, machine: only(""), conditions: with(notReady), want: turnedUnknown},

		"Unknown, ready":               {phase: unknown, conditions: with(ready), want: rejoined},
		"Unknown, ready but critical":  {phase: unknown, conditions: with(ready), taints: []corev1.Taint{critical}, want: rejoined},
		"Unknown, not ready":           {phase: unknown, conditions: with(notReady), want: unchanged(unknown)},
		"Unknown, absent":              {phase: unknown, absent: true, want: unchanged(unknown)},
		"Failed, ready":                {phase: failed, conditions: with(ready), want: rejoined},
		"Failed, not ready":            {phase: failed, conditions: with(notReady), want: unchanged(failed)},
		"InPlaceUpdating, not ready":   {phase: v1alpha1.MachineInPlaceUpdating, conditions: with(notReady), want: unchanged(v1alpha1.MachineInPlaceUpdating)},
		"InPlaceUpdating, ready":       {phase: v1alpha1.MachineInPlaceUpdating, conditions: with(ready), want: unchanged(v1alpha1.MachineInPlaceUpdating)},
		"InPlaceUpdateFailed, ready":   {phase: v1alpha1.MachineInPlaceUpdateFailed, conditions: with(ready), want: unchanged(v1alpha1.MachineInPlaceUpdateFailed)},
		"InPlaceUpdateSuccessful, fit": {phase: v1alpha1.MachineInPlaceUpdateSuccessful, conditions: with(ready), want: rejoined},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(inPhase(tc.phase), func(m *v1alpha1.Machine) {
				if tc.machine != nil {
					tc.machine(m)
				}
			})
			if !tc.absent {
				h.join(tc.conditions...)
				change(h, h.node(), func(n *corev1.Node) { n.Spec.Taints = tc.taints })
			}
			h.Pass() // starts the timeouts of this process
			h.SettleAfter(tc.after)
			got := h.machine()
			wantStatus(t, got, tc.want)
			var seen []corev1.NodeCondition
			if !tc.absent {
				seen = tc.conditions
			}
			if diff := cmp.Diff(seen, got.Status.Conditions, cmpopts.IgnoreFields(corev1.NodeCondition{}, "LastHeartbeatTime")); diff != "" {
				t.Errorf("copy of the node's conditions (-want +got):\n%s", diff)
			}
			if len(h.methods()) != 0 {
				t.Errorf("unexpected driver calls: %v", h.methods())
			}
		})
	}
}

// TestMachine_KeepsPreserveExpiryAfterFailure checks that a Machine keeps its PreserveExpiryTime when its node fails, until it
// is deleted.
func TestMachine_KeepsPreserveExpiryAfterFailure(t *testing.T) {
	h := newHarness(t)
	until := metav1.NewTime(h.Clock.Now().Add(time.Hour).Truncate(time.Second))
	h.declare(inPhase(v1alpha1.MachineRunning), annotated("now"), func(m *v1alpha1.Machine) { m.Status.CurrentStatus.PreserveExpiryTime = &until })
	h.join(notReady)
	h.Settle()
	if got := h.machine().Status.CurrentStatus; got.Phase != v1alpha1.MachineUnknown || !got.PreserveExpiryTime.Equal(&until) {
		t.Errorf("phase %q, preserved until %v, want Unknown, %v", got.Phase, got.PreserveExpiryTime, until)
	}
	h.delete()
	h.Settle()
	if !h.gone() {
		if got := h.machine().Status.CurrentStatus.PreserveExpiryTime; got != nil {
			t.Errorf("a Machine that is being deleted has PreserveExpiryTime %v", got)
		}
	}
}

// TestMachine_CreationTimeoutPrecedence checks which setting takes precedence, and when the timeout begins.
func TestMachine_CreationTimeoutPrecedence(t *testing.T) {
	spec := func(d time.Duration) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) {
			m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineCreationTimeout: &metav1.Duration{Duration: d}}
		}
	}
	annotation := func(text string, more ...func(*v1alpha1.Machine)) func(*v1alpha1.Machine) {
		return func(m *v1alpha1.Machine) {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout, text)
			for _, change := range more {
				change(m)
			}
		}
	}
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		want    time.Duration
	}{
		"flag":                             {func(*v1alpha1.Machine) {}, creationTimeout},
		"spec":                             {spec(3 * time.Minute), 3 * time.Minute},
		"annotation":                       {annotation("7m"), 7 * time.Minute},
		"annotation outranks spec":         {annotation("1h", spec(3*time.Minute)), time.Hour},
		"unreadable annotation, then spec": {annotation("soon", spec(3*time.Minute)), 3 * time.Minute},
		"unreadable annotation, then flag": {annotation("soon"), creationTimeout},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare(inPhase(v1alpha1.MachinePending), tc.machine)
			if got := h.Settle().RequeueAfter; got != tc.want {
				t.Errorf("the next pass is due in %v, want %v", got, tc.want)
			}
			h.SettleAfter(tc.want - time.Second)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
				t.Errorf("phase %q a second before the timeout", got)
			}
			h.SettleAfter(time.Second)
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
				t.Errorf("phase %q after %v", got, tc.want)
			}
		})
	}
}

// TestMachine_CreationTimeoutWaitsForTarget checks that the creation timeout does not expire while the target cluster is
// unavailable, and that it restarts afterwards.
func TestMachine_CreationTimeoutWaitsForTarget(t *testing.T) {
	h := newHarness(t)
	h.target.since = time.Time{}
	h.declare(inPhase(v1alpha1.MachinePending))
	h.Settle()
	result := h.SettleAfter(3 * creationTimeout)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Fatalf("phase %q while the target cluster is unavailable", got)
	}
	if result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("the next pass is due in %v, want a time, since no event reports that the target cluster is available again", result.RequeueAfter)
	}
	h.target.since = h.Clock.Now()
	h.SettleAfter(creationTimeout - time.Second)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q although the target cluster was available for less than the timeout", got)
	}
	h.SettleAfter(time.Second)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
		t.Errorf("phase %q after the timeout", got)
	}
}

// TestMachine_KeepsPhaseWithoutTarget checks that a Running Machine keeps its phase while the target cluster is
// unavailable.
func TestMachine_KeepsPhaseWithoutTarget(t *testing.T) {
	h := newHarness(t)
	h.target.since = time.Time{}
	h.declare(inPhase(v1alpha1.MachineRunning))
	h.Settle()
	h.SettleAfter(time.Hour)
	wantStatus(t, h.machine(), unchanged(v1alpha1.MachineRunning))
}
