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

// pool is what is given, with the Machines old of class a, and one, two and three of class b.
func (g *given) pool(changes ...func(*v1alpha1.Machine)) rollout.Facts {
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

// TestReplace: when the new machine comes first, and which machines are not to be replaced alone.
func TestReplace(t *testing.T) {
	for name, tc := range map[string]struct {
		given    func(*given)
		machine  string
		change   func(*v1alpha1.Machine)
		first    bool
		begun    bool
		says     string
		withdraw bool
	}{
		"surge":             {given: declared(fixture.Rolling("1", "0")), machine: "one", first: true},
		"no surge":          {given: declared(fixture.Rolling("0", "1")), machine: "one"},
		"Recreate":          {given: declared(fixture.Recreate), machine: "one"},
		"begun":             {given: declared(fixture.Rolling("0", "1"), replacingOne("one/4")), machine: "one", first: true, begun: true},
		"begun for another": {given: declared(replacingOne("two/4")), machine: "one", says: "one more replica for the replacement of machine two"},
		"begun, and gone":   {given: declared(replacingOne("six/4")), machine: "six", says: `"spec":{"replicas":3}`},
		"garbled":           {given: declared(fixture.Rolling("1", "0"), replacingOne("one/many")), machine: "one", first: true},
		"paused":            {given: declared(fixture.Paused), machine: "one", says: "is paused and cannot be restarted"},
		"wishes":            {given: declared(wishes), machine: "one", says: "is to be rolled back first"},
		"refused":           {given: declared(lacksInPlace), machine: "one", says: "before its spec is corrected"},
		"unknown":           {given: declared(), machine: "six", says: "machine six is not one of machine deployment"},
		"of an old set":     {given: declared(), machine: "old", says: "is of an old revision"},
		"Failed":            {given: declared(), machine: "one", change: in(v1alpha1.MachineFailed), says: "replaces it without this"},
		"leaving": {given: declared(), machine: "one", change: func(m *v1alpha1.Machine) {
			m.DeletionTimestamp = &metav1.Time{Time: noon}
		}, says: "is being deleted already"},
		"preserved": {given: declared(), machine: "one", change: func(m *v1alpha1.Machine) {
			m.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: noon.Add(time.Hour)}
		}, says: "millwright machine release one"},
	} {
		t.Run(name, func(t *testing.T) {
			change := tc.change
			if change == nil {
				change = func(*v1alpha1.Machine) {}
			}
			f := give(tc.given).pool(change)
			r, err := Replace(f, tc.machine, noon)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("answers %v, want %q", err, tc.says)
				}
				return
			}
			want := f.Deployment.Spec.Replicas + 1
			if tc.begun {
				want--
			}
			if err != nil || r.First != tc.first || r.Begun != tc.begun || r.Replicas != want || r.Machine.Name != tc.machine {
				t.Errorf("answers %+v, %v", r, err)
			}
		})
	}
}

// begun is what is given, with the replacement of machine one for which there is one replica more.
func begun(t *testing.T) (*given, client.Client, Replacement) {
	t.Helper()
	g := give(declared(fixture.Rolling("1", "0"), func(d *v1alpha1.MachineDeployment) {
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

// refused reports a write that is not refused for what somebody else wrote meanwhile.
func refused(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("answers %v, want %q", err, says)
	}
}

// TestReplacementWrites: a replica more, and the old machine named when it goes again.
func TestReplacementWrites(t *testing.T) {
	g, c, r := begun(t)
	now := read(t, c, g)
	if now.Spec.Replicas != 4 || now.Annotations[AnnotationReplacing] != "one/4" {
		t.Errorf("begins with %d replicas, %v", now.Spec.Replicas, now.Annotations)
	}
	refused(t, r.Begin(t.Context(), c, g.key()), "was scaled to 4 meanwhile")
	if err := r.Finish(t.Context(), c, g.key(), noon); err != nil {
		t.Fatal(err)
	}
	now = read(t, c, g)
	if _, still := now.Annotations[AnnotationReplacing]; still || now.Spec.Replicas != 3 || now.Annotations[v1alpha1.AnnotationKeyTriggerDeletion] != "two,one~2026-01-02T12:00:00Z" {
		t.Errorf("ends with %d replicas, %v", now.Spec.Replicas, now.Annotations)
	}
	refused(t, r.Finish(t.Context(), c, g.key(), noon), "was scaled to 3 meanwhile")
	_, err := r.Enough(rollout.FactsOf(now, g.sets, nil))
	refused(t, err, "machine one is not replaced")
}

// TestEnoughOthers: the old machine goes when as many others are available as there were replicas.
func TestEnoughOthers(t *testing.T) {
	g, c, r := begun(t)
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
