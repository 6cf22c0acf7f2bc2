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

// askedClass is the class that Machines are asked about.
const askedClass = "other"

// askAbout makes another class with a specification, and asks what an update to it would change.
func (h *harness) askAbout(spec string, changes ...func(*v1alpha1.MachineClass)) {
	h.Helper()
	class := newClass(h.Key.Namespace)
	class.Name, class.ResourceVersion, class.UID = askedClass, "", ""
	class.ProviderSpec = runtime.RawExtension{Raw: []byte(spec)}
	for _, c := range changes {
		c(class)
	}
	h.create(class)
	change(h, h.machine(), func(machine *v1alpha1.Machine) {
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateClass: askedClass}
	})
	h.Settle()
}

func (h *harness) effectOnOther() liveupdate.Effect {
	return liveupdate.Read(h.machine().Annotations).EffectOn(askedClass)
}

// TestAskedAboutAClass: the driver says what an update to another class would change, by one call and one write, and
// nothing changes.
func TestAskedAboutAClass(t *testing.T) {
	for spec, want := range map[string]liveupdate.Effect{specMade: liveupdate.None, specTags: liveupdate.Updates, specSize: liveupdate.Replaces} {
		h := runningOf(t, specMade)
		h.askAbout(spec)
		if diff := cmp.Diff([]string{"patch Machine"}, h.TakeWrites()); diff != "" {
			t.Errorf("%s: writes (-want +got):\n%s", spec, diff)
		}
		if dry, real := h.updates(); dry != 1 || real != 0 || h.vmSpec() != specMade {
			t.Errorf("%s: %d dry runs, %d updates; the VM is %s", spec, dry, real, h.vmSpec())
		}
		if got := h.effectOnOther(); got != want {
			t.Errorf("%s: the Machine says that it %s, want %s: %s", spec, got, want, h.machine().Annotations[v1alpha1.AnnotationKeyUpdatePlan])
		}
		h.wantRunning()
	}
}

// TestClassesThatAreForOtherVMs: whatever the driver would say, it is not asked.
func TestClassesThatAreForOtherVMs(t *testing.T) {
	for name, differs := range map[string]func(*v1alpha1.MachineClass){
		"provider": func(class *v1alpha1.MachineClass) { class.Provider = "elsewhere" },
		"user data": func(class *v1alpha1.MachineClass) {
			class.SecretRef = &corev1.SecretReference{Namespace: class.Namespace, Name: "other-user-data"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := runningOf(t, specMade)
			h.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.Key.Namespace, Name: "other-user-data"}, Data: map[string][]byte{"userData": []byte("another")}})
			h.askAbout(specMade, differs)
			if got := h.effectOnOther(); got != liveupdate.Replaces {
				t.Errorf("the Machine says that it %s", got)
			}
			if dry, real := h.updates(); dry+real > 0 {
				t.Errorf("the driver is asked %d times", dry+real)
			}
		})
	}
}

// TestAClassThatLeadsElsewhere: with its credentials the driver finds no VM.
func TestAClassThatLeadsElsewhere(t *testing.T) {
	h := runningOf(t, specMade)
	h.Driver.OnUpdate(fake.Always[driver.UpdateMachineRequest, driver.UpdateMachineResponse](nil, failingWith(codes.NotFound)))
	h.askAbout(specTags)
	if got := h.effectOnOther(); got != liveupdate.Replaces {
		t.Errorf("the Machine says that it %s", got)
	}
	h.wantRunning()
}

// TestAClassThatIsMissing is said, and asked about as soon as it is there.
func TestAClassThatIsMissing(t *testing.T) {
	h := runningOf(t, specMade)
	change(h, h.machine(), func(machine *v1alpha1.Machine) {
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyUpdateClass: askedClass}
	})
	h.Settle()
	h.Settle()
	if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], `FailedUpdate`) || !strings.Contains(events[0], askedClass) {
		t.Errorf("events are %q", events)
	}
	h.askAbout(specTags)
	if got := h.effectOnOther(); got != liveupdate.Updates {
		t.Errorf("then the Machine says that it %s", got)
	}
}

// TestAMachineThatFollows: it got the class, and its VM is updated without a strategy of that.
func TestAMachineThatFollows(t *testing.T) {
	h := runningOf(t, specMade)
	h.askAbout(specTags)
	h.TakeWrites()
	change(h, h.machine(), func(machine *v1alpha1.Machine) { machine.Spec.Class.Name = askedClass })
	h.Settle()
	if h.vmSpec() != specTags {
		t.Errorf("the VM is %s", h.vmSpec())
	}
	if asked := liveupdate.Asked(h.machine()); asked != "" {
		t.Errorf("it is still asked about %q", asked)
	}
	h.wantRunning()
	h.TakeWrites()
	h.Driver.ForgetCalls()
	h.restart()
	h.Settle()
	if writes, calls := h.TakeWrites(), h.methods(); len(writes)+len(calls) > 0 {
		t.Errorf("after a restart it makes writes %v and calls %v", writes, calls)
	}
}
