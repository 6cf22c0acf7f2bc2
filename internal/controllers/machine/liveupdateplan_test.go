package machine

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
)

// otherClassName is the class to which a live update is planned.
const otherClassName = "other"

// planUpdateTo creates another class with the given specification, and requests a plan of the update to it.
func (h *harness) planUpdateTo(spec string, changes ...func(*v1alpha1.MachineClass)) {
	h.Helper()
	class := newClass(h.Key.Namespace)
	class.Name, class.ResourceVersion, class.UID = otherClassName, "", ""
	class.ProviderSpec = runtime.RawExtension{Raw: []byte(spec)}
	for _, c := range changes {
		c(class)
	}
	h.create(class)
	change(h, h.machine(), func(machine *v1alpha1.Machine) {
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateClass: otherClassName}
	})
	h.Settle()
}

func (h *harness) effectOnOther() liveupdate.Effect {
	return liveupdate.Read(h.machine().Annotations).EffectOn(otherClassName)
}

// TestLiveUpdate_IsPlannedForAnotherClass checks that an update to another class is planned with one call and one write, without
// changing the VM.
func TestLiveUpdate_IsPlannedForAnotherClass(t *testing.T) {
	for spec, want := range map[string]liveupdate.Effect{specMade: liveupdate.None, specTags: liveupdate.Updates, specSize: liveupdate.Replaces} {
		h := runningOf(t, specMade)
		h.planUpdateTo(spec)
		if diff := cmp.Diff([]string{"patch Machine"}, h.TakeWrites()); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", spec, diff)
		}
		if dry, real := h.updates(); dry != 1 || real != 0 || h.vmSpec() != specMade {
			t.Errorf("%s: %d dry runs, %d updates, VM specification %s", spec, dry, real, h.vmSpec())
		}
		if got := h.effectOnOther(); got != want {
			t.Errorf("%s: effect %s, want %s: %s", spec, got, want, h.machine().Annotations[v1alpha1.AnnotationKeyUpdatePlan])
		}
		h.wantRunning()
	}
}

// TestLiveUpdate_IncompatibleClassesNeedReplacement checks that the driver is not called if the classes always require a replacement.
func TestLiveUpdate_IncompatibleClassesNeedReplacement(t *testing.T) {
	for name, differs := range map[string]func(*v1alpha1.MachineClass){
		"provider": func(class *v1alpha1.MachineClass) { class.Provider = "elsewhere" },
		"user data": func(class *v1alpha1.MachineClass) {
			class.SecretRef = &corev1.SecretReference{Namespace: class.Namespace, Name: "other-user-data"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := runningOf(t, specMade)
			h.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.Key.Namespace, Name: "other-user-data"}, Data: map[string][]byte{"userData": []byte("another")}})
			h.planUpdateTo(specMade, differs)
			if got := h.effectOnOther(); got != liveupdate.Replaces {
				t.Errorf("effect %s", got)
			}
			if dry, real := h.updates(); dry+real > 0 {
				t.Errorf("%d calls of UpdateMachine", dry+real)
			}
		})
	}
}

// TestLiveUpdate_ClassOfAnotherLocationNeedsReplacement checks a class with whose credentials the driver does not find the VM.
func TestLiveUpdate_ClassOfAnotherLocationNeedsReplacement(t *testing.T) {
	h := runningOf(t, specMade)
	h.Driver.OnUpdate(fake.Always[driver.UpdateMachineRequest, driver.UpdateMachineResponse](nil, failingWith(codes.NotFound)))
	h.planUpdateTo(specTags)
	if got := h.effectOnOther(); got != liveupdate.Replaces {
		t.Errorf("effect %s", got)
	}
	h.wantRunning()
}

// TestLiveUpdate_WaitsForMissingClass checks that a missing class is reported, and that the update is planned as soon as the
// class exists.
func TestLiveUpdate_WaitsForMissingClass(t *testing.T) {
	h := runningOf(t, specMade)
	change(h, h.machine(), func(machine *v1alpha1.Machine) {
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateClass: otherClassName}
	})
	h.Settle()
	h.Settle()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], `FailedUpdate`) || !strings.Contains(events[0], otherClassName) {
		t.Errorf("events %q", events)
	}
	h.planUpdateTo(specTags)
	if got := h.effectOnOther(); got != liveupdate.Updates {
		t.Errorf("effect %s after the class was created", got)
	}
}

// TestLiveUpdate_AppliesClassOfDeployment checks that a Machine that got the class is updated to it even if the class has no
// update strategy.
func TestLiveUpdate_AppliesClassOfDeployment(t *testing.T) {
	h := runningOf(t, specMade)
	h.planUpdateTo(specTags)
	h.TakeWrites()
	change(h, h.machine(), func(machine *v1alpha1.Machine) { machine.Spec.Class.Name = otherClassName })
	h.Settle()
	if h.vmSpec() != specTags {
		t.Errorf("VM specification %s", h.vmSpec())
	}
	if planned := liveupdate.RequestedClass(h.machine()); planned != "" {
		t.Errorf("an update to class %q is still planned", planned)
	}
	h.wantRunning()
	h.TakeWrites()
	h.Driver.ForgetCalls()
	h.restart()
	h.Settle()
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("writes %v and calls %v after a restart, want none", writes, calls)
	}
}
