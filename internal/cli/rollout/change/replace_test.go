package change

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// pool returns the state with the Machine old of class a, and the Machines one, two and three of class b.
func (g *state) pool(changes ...func(*v1alpha1.Machine)) rollout.Facts {
	var machines []v1alpha1.Machine
	for i, name := range []string{"old", "one", "two", "three"} {
		machine := fixture.Named(name, fixture.OwnedBy(&g.sets[min(i, 1)], fixture.Machine()))
		machine.DeletionTimestamp = nil
		machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
		if name == "one" {
			for _, change := range changes {
				change(machine)
			}
		}
		machines = append(machines, *machine)
	}
	return rollout.FactsOf(g.deployment, g.sets, machines)
}

func in(phase v1alpha1.MachinePhase) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) { m.Status.CurrentStatus.Phase = phase }
}

func replacingOne(text string) func(*v1alpha1.MachineDeployment) {
	return func(d *v1alpha1.MachineDeployment) {
		d.Annotations, d.Spec.Replicas = map[string]string{AnnotationReplacing: text}, 4
	}
}

// TestReplace checks when the new machine is created first, and which machines cannot be replaced individually.
func TestReplace(t *testing.T) {
	for name, tc := range map[string]struct {
		given    func(*state)
		machine  string
		change   func(*v1alpha1.Machine)
		first    bool
		started  bool
		want     string
		withdraw bool
	}{
		"surge":               {given: declared(fixture.Rolling("1", "0")), machine: "one", first: true},
		"no surge":            {given: declared(fixture.Rolling("0", "1")), machine: "one"},
		"Recreate":            {given: declared(fixture.Recreate), machine: "one"},
		"started":             {given: declared(fixture.Rolling("0", "1"), replacingOne("one/4")), machine: "one", first: true, started: true},
		"started for another": {given: declared(replacingOne("two/4")), machine: "one", want: "is replacing machine two"},
		"started, and gone":   {given: declared(replacingOne("six/4")), machine: "six", want: `"spec":{"replicas":3}`},
		"garbled":             {given: declared(fixture.Rolling("1", "0"), replacingOne("one/many")), machine: "one", first: true},
		"paused":              {given: declared(fixture.Paused), machine: "one", want: "is paused and cannot be restarted"},
		"rollback pending":    {given: declared(rollbackPending), machine: "one", want: "has a pending rollback"},
		"invalid":             {given: declared(lacksInPlace), machine: "one", want: "until its spec is corrected"},
		"unknown":             {given: declared(), machine: "six", want: "machine six does not belong to machine deployment"},
		"of an old set":       {given: declared(), machine: "old", want: "has an old revision"},
		"Failed":              {given: declared(), machine: "one", change: in(v1alpha1.MachineFailed), want: "its machine set already replaces it"},
		"being deleted": {given: declared(), machine: "one", change: func(m *v1alpha1.Machine) {
			m.DeletionTimestamp = &metav1.Time{Time: noon}
		}, want: "is already being deleted"},
		"preserved": {given: declared(), machine: "one", change: func(m *v1alpha1.Machine) {
			m.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: noon.Add(time.Hour)}
		}, want: "millwright machine release one"},
	} {
		t.Run(name, func(t *testing.T) {
			change := tc.change
			if change == nil {
				change = func(*v1alpha1.Machine) {}
			}
			f := newState(tc.given).pool(change)
			r, err := Replace(f, tc.machine, noon)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				return
			}
			want := f.Deployment.Spec.Replicas + 1
			if tc.started {
				want--
			}
			if err != nil || r.First != tc.first || r.Started != tc.started || r.Replicas != want || r.Machine.Name != tc.machine {
				t.Errorf("Replace() = %+v, %v", r, err)
			}
		})
	}
}

// startReplacement returns a state in which the replacement of machine one has started, with one additional replica.
func startReplacement(t *testing.T) (*state, client.Client, Replacement) {
	t.Helper()
	g := newState(declared(fixture.Rolling("1", "0"), func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyTriggerDeletion: "two"}
	}))
	c := g.server(t)
	r, err := Replace(g.pool(), "one", noon)
	if err == nil {
		err = r.Begin(t.Context(), c, g.key())
	}
	if err != nil {
		t.Fatal(err)
	}
	return g, c, r
}

// requireConflict fails the test unless err contains the message of a conflicting change.
func requireConflict(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestReplace_PatchesDeploymentAndMachine checks that Begin adds a replica, and that Finish removes it and marks the old machine for
// deletion.
func TestReplace_PatchesDeploymentAndMachine(t *testing.T) {
	g, c, r := startReplacement(t)
	now := read(t, c, g)
	if now.Spec.Replicas != 4 || now.Annotations[AnnotationReplacing] != "one/4" {
		t.Errorf("after Begin: %d replicas, annotations %v", now.Spec.Replicas, now.Annotations)
	}
	requireConflict(t, r.Begin(t.Context(), c, g.key()), "was scaled to 4 in the meantime")
	if err := r.Finish(t.Context(), c, g.key(), noon); err != nil {
		t.Fatal(err)
	}
	now = read(t, c, g)
	if _, still := now.Annotations[AnnotationReplacing]; still || now.Spec.Replicas != 3 || now.Annotations[v1alpha1.AnnotationKeyTriggerDeletion] != "two,one~2026-01-02T12:00:00Z" {
		t.Errorf("after Finish: %d replicas, annotations %v", now.Spec.Replicas, now.Annotations)
	}
	requireConflict(t, r.Finish(t.Context(), c, g.key(), noon), "was scaled to 3 in the meantime")
	_, err := r.Enough(rollout.FactsOf(now, g.sets, nil))
	requireConflict(t, err, "machine one was not replaced")
}

// TestReplace_WaitsForAvailableReplicas checks that the old machine is deleted when enough other machines are available.
func TestReplace_WaitsForAvailableReplicas(t *testing.T) {
	g, c, r := startReplacement(t)
	f := g.pool()
	f.Deployment = read(t, c, g)
	if enough, err := r.Enough(f); enough || err != nil {
		t.Errorf("two others are available: enough %t, %v", enough, err)
	}
	four := fixture.Named("four", f.Machines[3].DeepCopy())
	for phase, want := range map[v1alpha1.MachinePhase]bool{v1alpha1.MachinePending: false, v1alpha1.MachineRunning: true} {
		in(phase)(four)
		more := f
		more.Machines = append(slices.Clone(f.Machines), four)
		if enough, err := r.Enough(more); enough != want || err != nil {
			t.Errorf("the new machine is %s: enough %t, %v", phase, enough, err)
		}
	}
}
