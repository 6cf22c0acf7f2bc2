package podspec

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestPods_InvalidPlacement(t *testing.T) {
	for name, c := range map[string]struct {
		selector map[string]string
		want     string
	}{
		"empty":         {nil, ""},
		"labels":        {map[string]string{"pool": "fast", "example.com/gpu": ""}, ""},
		"invalid key":   {map[string]string{"not a key": "x"}, `"not a key" is not a valid label key`},
		"invalid value": {map[string]string{"pool": "fast and good"}, `spec.hostSelector[pool]: "fast and good" is not a valid label value`},
	} {
		t.Run(name, func(t *testing.T) {
			got := InvalidPlacement(&v1alpha1.VirtualMachineSpec{HostSelector: c.selector})
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestTarget_KeepsPlacement checks that a migration target is kept off the hosts of its anti-affinity group and off
// the host of the source.
func TestTarget_KeepsPlacement(t *testing.T) {
	vm := fixture.VirtualMachine()
	vm.Spec.AntiAffinity = &v1alpha1.AntiAffinity{Group: "etcd", Mode: v1alpha1.AntiAffinityRequired}
	vm.Status.ActivePodName = "source"
	source, err := Pod(vm, Settings{Image: "a"})
	if err != nil {
		t.Fatal(err)
	}
	vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "source", SourceNodeName: "host-1", TargetPodName: "target"}
	target, err := Target(vm, source, Settings{Image: "a"})
	if err != nil {
		t.Fatal(err)
	}
	affinity := target.Spec.Affinity
	if affinity.PodAntiAffinity == nil || affinity.NodeAffinity == nil {
		t.Fatalf("the affinity of the target is %+v", affinity)
	}
	fields := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields
	if len(fields) != 1 || fields[0].Operator != corev1.NodeSelectorOpNotIn || fields[0].Values[0] != "host-1" {
		t.Errorf("the target may be scheduled to %+v", fields)
	}
	// The source has the label of the group, too, but must not prevent its own target from being scheduled.
	term := affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	if own := term.LabelSelector.MatchExpressions[0]; own.Key != v1alpha1.LabelVM || own.Values[0] != vm.Name {
		t.Errorf("Pods of the same VM are not excluded: %+v", own)
	}
}

func TestChanged(t *testing.T) {
	vm := fixture.VirtualMachine()
	vm.Generation, vm.Status.ActivePodName = 3, "a"
	pod, err := Pod(vm, Settings{Image: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if Changed(vm, pod, Settings{Image: "a"}) {
		t.Error("an unchanged VM is reported as changed")
	}
	if !Changed(vm, pod, Settings{Image: "b"}) {
		t.Error("another default image is not reported as a change")
	}
	vm.Generation++
	if !Changed(vm, pod, Settings{Image: "a"}) {
		t.Error("another spec is not reported as a change")
	}
}

// TestChanged_IgnoresContainersOfWebhooks checks that the hypervisor's container is found even if a webhook has added a container
// before it.
func TestChanged_IgnoresContainersOfWebhooks(t *testing.T) {
	vm, settings := fixture.VirtualMachine(), Settings{Image: "a"}
	vm.Status.Lease = &v1alpha1.VirtualMachineLease{DurationSeconds: 60}
	vm.Status.ActivePodName = "source"
	source, err := Pod(vm, settings)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := LeaseOf(source)
	if err != nil || lease != time.Minute {
		t.Fatalf("the lease lasts %v, error %v", lease, err)
	}
	vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "source", TargetPodName: "target"}
	want, err := Target(vm, source, settings)
	if err != nil {
		t.Fatal(err)
	}
	source.Spec.Containers = append([]corev1.Container{{Name: "proxy", Image: "p"}}, source.Spec.Containers...)
	if got, err := LeaseOf(source); err != nil || got != lease {
		t.Errorf("the lease lasts %v instead of %v, error %v", got, lease, err)
	}
	if Changed(vm, source, settings) {
		t.Error("the image is reported as changed")
	}
	got, err := Target(vm, source, settings)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("the target of a migration, error %v (-want +got):\n%s", err, diff)
	}
	source.Spec.Containers = source.Spec.Containers[:1]
	if lease, err := LeaseOf(source); err == nil {
		t.Errorf("without the hypervisor, its lease lasts %v", lease)
	}
}

// TestTarget_KeepsUserDataOfSource checks that a migration does not change the guest's user data or host name, even if
// the spec has changed since the guest started.
func TestTarget_KeepsUserDataOfSource(t *testing.T) {
	vm, settings := fixture.VirtualMachine(), Settings{Image: "a"}
	vm.Status.ActivePodName = "source"
	vm.Spec.UserData = &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: "boot", Key: "k"}, HostName: "machine-1"}
	source, err := Pod(vm, settings)
	if err != nil {
		t.Fatal(err)
	}
	vm.Status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "source", TargetPodName: "target"}
	for name, changed := range map[string]*v1alpha1.UserData{
		"unchanged": vm.Spec.UserData, "removed": nil, "changed": {SecretRef: v1alpha1.SecretKeyReference{Name: "other"}, HostName: "other"},
	} {
		vm.Spec.UserData = changed
		target, err := Target(vm, source, settings)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := specOf(target)
		if err != nil {
			t.Fatal(err)
		}
		mounts := userDataOf(target)
		if mounts == nil || mounts.SecretRef.Name != "boot" || mounts.SecretRef.Key != "k" || spec.GetUserData().GetHostName() != "machine-1" {
			t.Errorf("%s: the target mounts %+v and has the user data %v", name, mounts, spec.GetUserData())
		}
	}
}
