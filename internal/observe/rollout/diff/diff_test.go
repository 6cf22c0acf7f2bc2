package diff

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/rollout"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/revision"
)

// given returns a deployment of three machines of class a, revision 2. Revision 1 has class b and
// no machines.
func given() rollout.Facts {
	labels := map[string]string{"name": "pool"}
	d := &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pool", UID: "pool"},
		Spec: v1alpha1.MachineDeploymentSpec{
			Replicas: 3, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: v1alpha1.MachineDeploymentStrategy{
				Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType,
				RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{
					MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0)),
				}},
			},
			Template: v1alpha1.MachineTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "a"}},
			},
		},
	}
	var sets []v1alpha1.MachineSet
	var machines []v1alpha1.Machine
	for class, number := range map[string]int{"b": 1, "a": 2} {
		set := v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "pool-" + class, UID: types.UID(class),
			Annotations:     map[string]string{v1alpha1.AnnotationKeyRevision: fmt.Sprint(number)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))},
		}}
		set.Spec.Template = *d.Spec.Template.DeepCopy()
		set.Spec.Template.Spec.Class.Name = class
		set.Spec.Template.Labels = map[string]string{"name": "pool", v1alpha1.DefaultMachineDeploymentUniqueLabelKey: class}
		if class == "a" {
			set.Spec.Replicas = 3
			for i := range 3 {
				machines = append(machines, v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: fmt.Sprintf("pool-a-%d", i),
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&set, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))},
				}, Spec: set.Spec.Template.Spec})
			}
		}
		sets = append(sets, set)
	}
	return rollout.FactsOf(d, sets, machines)
}

func TestDiff_Deployment(t *testing.T) {
	const rolls = ", with at most 1 more (maxSurge) and 0 fewer (maxUnavailable) than the 3 desired. "
	for name, tt := range map[string]struct {
		change func(*v1alpha1.MachineDeployment)
		want   string
	}{
		"nothing": {func(*v1alpha1.MachineDeployment) {}, "No machine is replaced."},
		"another class": {
			func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = "c" },
			`Machines are replaced, or updated in place, for:
  spec.template.spec.class.name: "a" -> "c"

3 machines are replaced` + rolls + "A new revision is created.",
		},
		"the class before": {
			func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = "b" },
			`Machines are replaced, or updated in place, for:
  spec.template.spec.class.name: "a" -> "b"

3 machines are replaced` + rolls + "Revision 1 (machine set pool-b) then becomes current.",
		},
		"labels of nodes, and more of them": {
			func(d *v1alpha1.MachineDeployment) {
				d.Spec.Template.Spec.NodeTemplateSpec.Labels = map[string]string{"example.com/tier": "gold"}
				d.Spec.Replicas = 5
				d.Spec.MinReadySeconds = 10
			},
			`Machines and their nodes are updated without replacement for:
  spec.template.spec.nodeTemplate.metadata.labels['example.com/tier']: (none) -> "gold"
The number of machines changes for:
  spec.replicas: 3 -> 5
Machines are not changed for:
  spec.minReadySeconds: (none) -> 10

No machine is replaced.
2 machines are created: 5 instead of 3.`,
		},
		"fewer": {
			func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 2 },
			`The number of machines changes for:
  spec.replicas: 3 -> 2

No machine is replaced.
1 machine is deleted: 2 of 3 stay.`,
		},
		"paused, Recreate": {
			func(d *v1alpha1.MachineDeployment) {
				d.Spec.Template.Spec.Class.Name = "c"
				d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{Type: v1alpha1.RecreateMachineDeploymentStrategyType}
				d.Spec.Paused = true
			},
			`Machines are replaced, or updated in place, for:
  spec.template.spec.class.name: "a" -> "c"
Machines are not changed for:
  spec.paused: (none) -> true
  spec.strategy.rollingUpdate.maxSurge: 1 -> (none)
  spec.strategy.rollingUpdate.maxUnavailable: 0 -> (none)
  spec.strategy.type: "RollingUpdate" -> "Recreate"

3 machines are replaced, all at the same time, after the old ones are deleted (Recreate). A new revision is created.
The deployment is paused: no machine is replaced or updated until it is resumed.`,
		},
		"in place, by hand": {
			func(d *v1alpha1.MachineDeployment) {
				d.Spec.Template.Spec.Class.Name = "c"
				d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
					Type:          v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
					InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{OrchestrationType: v1alpha1.OrchestrationTypeManual},
				}
			},
			"The nodes of 3 machines are updated in place, if selected by the label node.machine.sapcloud.io/selected-for-update. A new revision is created.",
		},
		"invalid spec": {
			func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = -1 },
			"The manager does not act until the spec is corrected: spec.replicas",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := given()
			desired := f.Deployment.DeepCopy()
			tt.change(desired)
			found, err := OfDeployment(f, desired, time.Now())
			if got := strings.Join(found.Lines(), "\n"); err != nil || !strings.Contains(got, tt.want) {
				t.Errorf("got\n%s\n(%v), want\n%s", got, err, tt.want)
			}
		})
	}
}

// TestDiff_ClassWithLiveUpdates checks that, with an update strategy, machines whose VMs can be
// updated stay.
func TestDiff_ClassWithLiveUpdates(t *testing.T) {
	for name, test := range map[string]struct {
		strategy liveupdate.Strategy
		reported int
		want     string
	}{
		"no driver has reported": {liveupdate.Update, 0, "Machines whose VMs can be updated stay and get the new class. The others are replaced, with at most 1 more (maxSurge) and 0 fewer (maxUnavailable) than the 3 desired. " +
			`Known so far: 3 machines for class "c": 3 waiting for the driver.`},
		"a dry run": {liveupdate.DryRun, 2, "No machine is replaced and no VM is updated (dry run): " +
			`3 machines for class "c": 1 to be updated, 1 to be replaced, 1 waiting for the driver.`},
		"a dry run, all reported": {liveupdate.DryRun, 3, `3 machines for class "c": 2 to be updated, 1 to be replaced.`},
	} {
		t.Run(name, func(t *testing.T) {
			f := given()
			for i, machine := range f.Machines {
				machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
				if i < test.reported {
					report(machine, "c", i == 1)
				}
			}
			desired := f.Deployment.DeepCopy()
			desired.Spec.Template.Spec.Class.Name = "c"
			desired.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateStrategy: string(test.strategy)}
			found, err := OfDeployment(f, desired, time.Now())
			if got := strings.Join(found.Verdict, "\n"); err != nil || !strings.Contains(got, test.want) {
				t.Errorf("got\n%s\n(%v), want\n%s", got, err, test.want)
			}
		})
	}
}

// report sets the driver's report on what updating a machine to a class would change.
func report(machine *v1alpha1.Machine, class string, replaces bool) {
	machine.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateClass: class}
	replacements := map[bool][]string{true: {"zone"}}[replaces]
	of := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: class}}
	liveupdate.State{}.Queried(of, []string{"tags"}, nil, replacements).Write(machine)
}

// TestDiff_UnreleasedClass checks that, without a change, the diff shows template changes that no set has
// yet.
func TestDiff_UnreleasedClass(t *testing.T) {
	f := given()
	f.Deployment.Spec.Template.Spec.Class.Name = "c"
	f.Deployment.Spec.Paused = true
	found, err := OfDeployment(f, f.Deployment, time.Now())
	got := strings.Join(found.Lines(), "\n")
	for _, want := range []string{`spec.template.spec.class.name: "a" -> "c"`, "3 machines are replaced", "is paused"} {
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("got\n%s\n(%v), want %q", got, err, want)
		}
	}
}

// TestDiff_ReportsEveryField checks that the diff reports a replacement for exactly the template fields
// that cause one in a rollout.
func TestDiff_ReportsEveryField(t *testing.T) {
	for field, template := range map[string]string{
		"metadata.labels":              `{"metadata":{"labels":{"tier":"gold"}}}`,
		"metadata.annotations":         `{"metadata":{"annotations":{"tier":"gold"}}}`,
		"spec.class.name":              `{"spec":{"class":{"name":"c"}}}`,
		"spec.class.kind":              `{"spec":{"class":{"kind":"AWSMachineClass"}}}`,
		"spec.class.apiGroup":          `{"spec":{"class":{"apiGroup":"c"}}}`,
		"spec.providerID":              `{"spec":{"providerID":"c"}}`,
		"spec.nodeTemplate":            `{"spec":{"nodeTemplate":{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}}}`,
		"spec.drainTimeout":            `{"spec":{"drainTimeout":"1m0s"}}`,
		"spec.healthTimeout":           `{"spec":{"healthTimeout":"1m0s"}}`,
		"spec.creationTimeout":         `{"spec":{"creationTimeout":"1m0s"}}`,
		"spec.maxEvictRetries":         `{"spec":{"maxEvictRetries":3}}`,
		"spec.nodeConditions":          `{"spec":{"nodeConditions":"KernelDeadlock"}}`,
		"spec.disableHealthTimeout":    `{"spec":{"disableHealthTimeout":true}}`,
		"spec.inPlaceUpdateTimeout":    `{"spec":{"inPlaceUpdateTimeout":"1m0s"}}`,
		"spec.machinePreserveTimeout":  `{"spec":{"machinePreserveTimeout":"1m0s"}}`,
		"metadata.labels of two names": `{"metadata":{"labels":{"tier":"gold","name.of/it":"x"}}}`,
	} {
		f := given()
		desired := f.Deployment.DeepCopy()
		if err := json.Unmarshal([]byte(template), &desired.Spec.Template); err != nil {
			t.Fatal(err)
		}
		found, err := OfDeployment(f, desired, time.Now())
		replaces := len(found.Changes[Replaces]) > 0
		if want := !revision.Same(&f.Deployment.Spec.Template, &desired.Spec.Template); err != nil || replaces != want || found.Same() {
			t.Errorf("%s replaces: %t, want %t; %+v, %v", field, replaces, want, found.Changes, err)
		}
	}
}

func TestDiff_Class(t *testing.T) {
	class := func(providerSpec string) *v1alpha1.MachineClass {
		return &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: "a"}, ProviderSpec: runtime.RawExtension{Raw: []byte(providerSpec)}}
	}
	var machines []v1alpha1.Machine
	for range 2 {
		machines = append(machines, v1alpha1.Machine{Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Name: "a"}}})
	}
	for name, tt := range map[string]struct {
		becomes  string
		machines []v1alpha1.Machine
		want     string
	}{
		"nothing": {`{"cpus":2}`, machines, "Nothing changes."},
		"unused":  {`{"cpus":4}`, nil, "No machine uses this class."},
		"in use": {`{"cpus":4}`, machines, `Machines are not changed for:
  providerSpec.cpus: 2 -> 4

Existing VMs (2 machines) are not changed. New VMs use the changed class.`},
	} {
		found, err := OfClass(class(`{"cpus":2}`), class(tt.becomes), tt.machines)
		if got := strings.Join(found.Lines(), "\n"); err != nil || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got\n%s\n(%v), want\n%s", name, got, err, tt.want)
		}
	}
}
