package machineset

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func withTemplate(change func(*v1alpha1.MachineSpec)) func(*v1alpha1.MachineSet) {
	return func(set *v1alpha1.MachineSet) { change(&set.Spec.Template.Spec) }
}

func drainFor(d time.Duration) *v1alpha1.MachineConfiguration {
	return &v1alpha1.MachineConfiguration{MachineDrainTimeout: &metav1.Duration{Duration: d}}
}

// updates returns the operations that apply changes of the template to Machines.
func updates(set *v1alpha1.MachineSet, owned []*v1alpha1.Machine) []scale.Operation {
	return (&upToDate{}).updates(set, owned)
}

func (u *upToDate) updates(set *v1alpha1.MachineSet, owned []*v1alpha1.Machine) []scale.Operation {
	f := scale.Facts{Set: set, Owned: owned}
	f.Reserve = scale.Members(set, owned, noon)
	f.Outdated = u.outdated(set, owned, f.Reserve)
	return only(scale.Plan(f), scale.Update)
}

// excess sets the number of Machines in the reserve.
func excess(n int) func(*v1alpha1.MachineSet) {
	return func(set *v1alpha1.MachineSet) {
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyExcessReplicas, strconv.Itoa(n))
	}
}

// inExcess marks a Machine as part of the reserve.
func inExcess(m *v1alpha1.Machine) { m.Spec = *reserve.Marked(&m.Spec, reserve.NoSchedule) }

func TestMachineSet_PropagatesTemplate(t *testing.T) {
	configured := func(m *v1alpha1.Machine) { m.Spec.MachineConfiguration = drainFor(time.Hour) }
	tainted := withTemplate(func(spec *v1alpha1.MachineSpec) {
		spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	})
	for reason, test := range map[string]struct {
		change func(*v1alpha1.MachineSet)
		owned  []*v1alpha1.Machine
		want   map[string]string
	}{
		"all alike": {nil, machines(2), map[string]string{}},
		"node template": {
			tainted, machines(2),
			map[string]string{"m0": "the machine set has a different node template", "m1": "the machine set has a different node template"},
		},
		"a timeout is set": {
			withTemplate(func(spec *v1alpha1.MachineSpec) { spec.MachineConfiguration = drainFor(time.Hour) }),
			[]*v1alpha1.Machine{machine("a"), machine("b", configured)},
			map[string]string{"a": "the machine set has a different configuration"},
		},
		"a timeout is removed": {
			nil, []*v1alpha1.Machine{machine("a"), machine("b", configured)},
			map[string]string{"b": "the machine set has a different configuration"},
		},
		"an empty configuration equals none": {
			withTemplate(func(spec *v1alpha1.MachineSpec) { spec.MachineConfiguration = &v1alpha1.MachineConfiguration{} }),
			machines(1), map[string]string{},
		},
		"two in excess of three: the newest": {
			excess(2), []*v1alpha1.Machine{machine("a", age(3*time.Hour)), machine("b", age(time.Hour)), machine("c", age(2*time.Hour))},
			map[string]string{"b": "it is in excess of the desired replicas", "c": "it is in excess of the desired replicas"},
		},
		"in excess no more": {
			nil, []*v1alpha1.Machine{machine("a"), machine("b", inExcess)},
			map[string]string{"b": "it is needed for pods and is no longer in excess"},
		},
		"in excess, and another node template": {
			func(set *v1alpha1.MachineSet) { tainted(set); excess(1)(set) }, []*v1alpha1.Machine{machine("a"), machine("b", inExcess)},
			map[string]string{"a": "the machine set has a different node template", "b": "the machine set has a different node template"},
		},
		"in excess, with pods evicted": {
			func(set *v1alpha1.MachineSet) {
				excess(1)(set)
				set.Annotations[v1alpha1.AnnotationKeyExcessNoExecute] = "true"
			}, []*v1alpha1.Machine{machine("a"), machine("b", inExcess)},
			map[string]string{"b": "the taints of excess machines changed"},
		},
		"kind of class": {
			withTemplate(func(spec *v1alpha1.MachineSpec) { spec.Class.Kind = "Other" }), machines(1),
			map[string]string{"m0": "the machine set has a different kind of class"},
		},
		"a migrated machine keeps its kind of class": {
			withTemplate(func(spec *v1alpha1.MachineSpec) { spec.Class.Kind = legacy.GCP }),
			[]*v1alpha1.Machine{machine("a"), machine("b", func(m *v1alpha1.Machine) { m.Spec.Class.Kind = legacy.AWS })},
			map[string]string{"b": "the machine set has a different kind of class"},
		},
		"fields of the VM stay unchanged": {
			withTemplate(func(spec *v1alpha1.MachineSpec) {
				spec.Class.Name, spec.Class.APIGroup, spec.ProviderID = "large", "example.com", "sim:///x"
			}), machines(1), map[string]string{},
		},
		"only matching machines that are not deleted": {
			tainted,
			[]*v1alpha1.Machine{machine("a", deleting), machine("b", phase(v1alpha1.MachineTerminating)), machine("c", unlabelled)},
			map[string]string{"b": "the machine set has a different node template"},
		},
	} {
		t.Run(reason, func(t *testing.T) {
			set := newSet(2)
			if test.change != nil {
				test.change(set)
			}
			got := map[string]string{}
			for _, op := range updates(set, test.owned) {
				got[op.Machine.Name] = op.Reason
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}

func TestMachineSet_PropagationWritesOnce(t *testing.T) {
	s := newServer(newSet(2), machine("a", func(m *v1alpha1.Machine) { m.Spec.ProviderID = "sim:///a" }), machine("b"))
	c := s.newController()
	pass(t, c)
	set := s.set()
	set.Spec.Template.Spec.NodeTemplateSpec.Labels = map[string]string{"disk": "fast"}
	set.Spec.Template.Spec.MachineConfiguration = drainFor(time.Minute)
	set.Spec.Template.Spec.Class.Name = "large"
	set.Generation++
	must(s.live.Update(t.Context(), set))
	s.writes = nil
	pass(t, c)
	if n := s.count("patch Machine"); n != 2 {
		t.Errorf("%d patches, want one for each machine: %q", n, s.writes)
	}
	s.scale(2)
	pass(t, c) // the cache is stale
	if set := s.set(); set.Status.ObservedGeneration != set.Generation {
		t.Error("machines that another client changed prevented the pass")
	}
	s.catchUp()
	pass(t, c)
	if n := s.count("patch Machine"); n != 4 { // including two refused ones because of the stale cache
		t.Errorf("%d patches: %q", n, s.writes)
	}
	got := s.all()["a"].Spec
	want := v1alpha1.MachineSpec{
		Class: v1alpha1.ClassSpec{Kind: "MachineClass", Name: fixture.Class}, ProviderID: "sim:///a", MachineConfiguration: drainFor(time.Minute),
	}
	want.NodeTemplateSpec.Labels = map[string]string{"disk": "fast"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
	if conditions := s.set().Status.Conditions; len(conditions) != 0 {
		t.Errorf("conflicts were reported: %+v", conditions)
	}
}

// TestMachineSet_FailedPropagationDoesNotStopPass checks that a pass continues after a failed update, which does not
// affect the number of machines.
func TestMachineSet_FailedPropagationDoesNotStopPass(t *testing.T) {
	s := newServer(newSet(3, withTemplate(func(spec *v1alpha1.MachineSpec) { spec.MachineConfiguration = drainFor(1) })), machine("a"), machine("b"))
	s.respond = func(verb string, object client.Object) (error, bool) {
		if verb == "patch" && object.GetName() == "a" {
			return apierrors.NewForbidden(resource, "a", errors.New("no")), false
		}
		return nil, false
	}
	_, err := s.newController().Reconcile(t.Context(), request)
	if !errors.Is(err, errUpdate) || !apierrors.IsForbidden(err) {
		t.Errorf("error %v", err)
	}
	if len(s.all()) != 3 || s.all()["b"].Spec.MachineConfiguration == nil {
		t.Errorf("the pass stopped: %q", s.writes)
	}
	if conditions := s.set().Status.Conditions; len(conditions) != 1 || conditions[0].Reason != "FailedUpdate" {
		t.Errorf("conditions: %+v", conditions)
	}
}
