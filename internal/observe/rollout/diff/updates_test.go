package diff

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestDiff_LiveUpdates(t *testing.T) {
	class := &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Name: "a", Annotations: map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: "DryRun"}},
		ProviderSpec: runtime.RawExtension{Raw: []byte(`{"tags":{}}`)},
	}
	var machines []*v1alpha1.Machine
	add := func(name, class string, change func(*v1alpha1.Machine)) {
		machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Name: class}}}
		change(machine)
		machines = append(machines, machine)
	}
	plan := func(updates, atNextStart, replacements []string) func(*v1alpha1.Machine) {
		state := liveupdate.State{}.Planned(class, liveupdate.DryRun, updates, atNextStart, replacements)
		return func(machine *v1alpha1.Machine) { state.Write(machine) }
	}
	add("m6", "a", func(machine *v1alpha1.Machine) {
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: ""}
	})
	add("m1", "a", plan([]string{"tags", "cpus"}, []string{"cpus"}, nil))
	add("m2", "a", plan([]string{"tags"}, nil, []string{"zone"}))
	add("m3", "a", plan(nil, nil, nil))
	add("m4", "a", func(*v1alpha1.Machine) {})
	add("m5", "another", plan([]string{"tags"}, nil, nil))
	add("m7", "a", func(machine *v1alpha1.Machine) { machine.DeletionTimestamp = &metav1.Time{} })
	machines[len(machines)-1].DeletionTimestamp = new(metav1.Now())
	want := `  m1: updates (tags, cpus), at its next start: cpus
  m2: replaces (zone), updates (tags)
  m3: nothing
  m4: unknown: waiting for the driver
  m6: nothing (it has no update strategy)

This is a dry run. To make the changes, set the annotation machine.millwright.dev/update-strategy of the class to "Update".

VMs that need a replacement stay until you replace them with "millwright rollout restart NAME" (add --machine to replace only one).`
	if diff := cmp.Diff(want, strings.Join(OfVMs(class, machines), "\n")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	class.Annotations = nil
	if lines := OfVMs(class, machines); lines != nil {
		t.Errorf("without an update strategy: got %q", lines)
	}
	class.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: "Now"}
	if lines := strings.Join(OfVMs(class, machines), "\n"); !strings.Contains(lines, `VMs are not updated: "Now" is not an update strategy`) {
		t.Errorf("invalid strategy: got\n%s", lines)
	}
}

// TestDiff_ClassChange checks that machines are listed during a change of class, and that the text is
// printable.
func TestDiff_ClassChange(t *testing.T) {
	if lines := OfClassChange(nil); lines != nil {
		t.Errorf("without a change: got %q", lines)
	}
	d := fixture.Deployment(2, fixture.OfClass("b"))
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyUpdateStrategy, "Update")
	set := fixture.Set("a", 2)
	change := liveupdate.Find(d, nil, []*v1alpha1.MachineSet{set}, fixture.Noon)
	for _, name := range []string{"m2", "m1"} {
		change.Machines = append(change.Machines, fixture.Running(set, name, func(machine *v1alpha1.Machine) {
			machine.Spec.Class.Name = "a"
			machine.Annotations[v1alpha1.AnnotationKeyUpdateClass] = "b"
			class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
			liveupdate.State{}.Queried(class, nil, nil, []string{"zone\x1b[2J"}).Write(machine)
		}))
	}
	if lines := OfClassChange(change); lines != nil {
		t.Errorf("without a live update: got %q", lines)
	}
	change.Machines[0].Annotations = nil
	want := []string{"  m1: replaces (zone [2J)", "  m2: unknown: waiting for the driver"}
	if diff := cmp.Diff(want, OfClassChange(change)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
