package machine

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
)

// TestWhatIsMissing: each thing that a creation needs and lacks is said in status and in
// one event, the driver is not troubled, and the Machine goes on when it is there.
func TestWhatIsMissing(t *testing.T) {
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		spoil   func(h *harness)
		repair  func(h *harness)
		says    string
	}{
		"class": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				h.remove(newClass(h.Key.Namespace))
			},
			repair: func(h *harness) { h.create(newClass(h.Key.Namespace)) },
			says:   `MachineClass "small" not found in namespace "shoot"`,
		},
		"secret": {
			spoil:  func(h *harness) { h.remove(newSecret(h.Key.Namespace)) },
			repair: func(h *harness) { h.create(newSecret(h.Key.Namespace)) },
			says:   `Secret "shoot/small" of MachineClass "small" not found`,
		},
		"secret elsewhere": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.SecretRef.Namespace = "garden" })
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.SecretRef.Namespace = "" })
			},
			says: `Secret "garden/small" of MachineClass "small" must be in namespace "shoot"`,
		},
		"user data": {
			spoil: func(h *harness) {
				change(h, newSecret(h.Key.Namespace), func(s *corev1.Secret) { delete(s.Data, "userData") })
			},
			repair: func(h *harness) {
				change(h, newSecret(h.Key.Namespace), func(s *corev1.Secret) { s.Data["userData"] = []byte("x") })
			},
			says: `No Secret of MachineClass "small" has the key "userData"`,
		},
		"any secret": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.SecretRef = nil })
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) {
					c.SecretRef = &corev1.SecretReference{Namespace: h.Key.Namespace, Name: className}
				})
			},
			says: `No Secret of MachineClass "small" has the key "userData"`,
		},
		"a class that stays": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = []string{"example.com/held-by-others"} })
				h.remove(newClass(h.Key.Namespace))
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				h.create(newClass(h.Key.Namespace))
			},
			says: `MachineClass "small" is being deleted`,
		},
		"sense in the class": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = &v1alpha1.NodeTemplate{Region: "moon"} })
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = nil })
			},
			says: `MachineClass "small" is not valid`,
		},
		"the right kind": {
			machine: func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "AWSMachineClass" },
			repair: func(h *harness) {
				change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.Class.Kind = v1alpha1.MachineClassKind })
			},
			says: `Class kind "AWSMachineClass" of machine "m1" is not supported`,
		},
		"the right driver": {
			spoil: func(h *harness) {
				h.controller.Drivers = registry.Only("fake", fake.New(fake.Config{}))
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Provider = "aws" })
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Provider = "fake" })
			},
			says: `MachineClass "small" is for the driver "aws", and this manager has the driver "fake"`,
		},
		"a whole node template": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) {
					c.NodeTemplate = &v1alpha1.NodeTemplate{Capacity: corev1.ResourceList{"cpu": {}, "memory": {}}, InstanceType: "a", Region: "b"}
				})
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) {
					c.NodeTemplate.Capacity["gpu"], c.NodeTemplate.Zone = resource.Quantity{}, "c"
				})
			},
			says: `MachineClass "small" is not valid: [nodeTemplate.capacity[gpu]: Required value: needed to scale from zero, nodeTemplate.zone: Required value: needed to scale from zero]`,
		},
		"a sensible timeout": {
			machine: func(m *v1alpha1.Machine) {
				disabled(false)(m)
				m.Spec.MachineHealthTimeout = &metav1.Duration{Duration: -time.Hour}
			},
			repair: func(h *harness) {
				change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.MachineHealthTimeout = nil })
			},
			says: `spec.healthTimeout: Invalid value: "-1h0m0s": must not be negative`,
		},
		"kind and name": {
			machine: func(m *v1alpha1.Machine) { m.Spec.Class = v1alpha1.ClassSpec{} },
			repair: func(h *harness) {
				change(h, h.machine(), func(m *v1alpha1.Machine) {
					m.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: className}
				})
			},
			says: `spec.class.name: Required value`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			if tc.spoil != nil {
				tc.spoil(h)
			}
			h.declare(func(m *v1alpha1.Machine) {
				if tc.machine != nil {
					tc.machine(m)
				}
			})
			result := h.Settle()
			wantStatus(t, h.machine(), want4{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, tc.says})
			if code := h.machine().Status.LastOperation.ErrorCode; code != "" {
				t.Errorf("error code %q of a driver that was not asked", code)
			}
			if result.RequeueAfter != creationTimeout {
				t.Errorf("it is looked at again after %v, want the creation timeout: until then only an event helps", result.RequeueAfter)
			}
			h.Settle()
			if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], tc.says) {
				t.Errorf("events %q, want one that says %q", events, tc.says)
			}
			if len(h.methods()) != 0 {
				t.Errorf("the driver was called: %v", h.methods())
			}

			tc.repair(h)
			h.Settle()
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
				t.Errorf("after the repair the phase is %q, want Pending", got)
			}
		})
	}
}

// TestClassIsHeldFirst: a class without our finalizer could vanish under a VM. It will
// have it in a moment, so nothing is said.
func TestClassIsHeldFirst(t *testing.T) {
	h := newHarness(t)
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
	h.declare()
	h.Settle()
	if len(h.methods()) != 0 || h.machine().Status.CurrentStatus.Phase != "" || len(h.takeEvents()) != 0 {
		t.Fatalf("driver calls %v, phase %q; want nothing to have happened", h.methods(), h.machine().Status.CurrentStatus.Phase)
	}
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = []string{v1alpha1.FinalizerMCM} })
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q once the class is held", got)
	}
}

// TestMissingUntilTheEnd: also a Machine that the driver was never asked for becomes
// Failed, so that its set does not wait for it for ever.
func TestMissingUntilTheEnd(t *testing.T) {
	h := newHarness(t)
	h.remove(newSecret(h.Key.Namespace))
	h.declare()
	h.Settle()
	h.SettleAfter(creationTimeout - time.Second)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineCrashLoopBackOff {
		t.Fatalf("phase %q before the creation timeout", got)
	}
	h.SettleAfter(time.Second)
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachineFailed {
		t.Fatalf("phase %q after the creation timeout", got)
	}
}

// TestClassGoesInMidCreation: a creation that is under way is awaited before the Machine
// goes, and the VM that it made is not forgotten.
func TestClassGoesInMidCreation(t *testing.T) {
	vanish := func(h *harness, c *v1alpha1.MachineClass) {
		change(h, c, func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
		h.remove(c)
	}
	for name, tc := range map[string]struct {
		change func(h *harness, class *v1alpha1.MachineClass)
		fails  bool
		says   string
	}{
		"class is gone": {vanish, false, "not found"},
		"class is another driver's": {func(h *harness, c *v1alpha1.MachineClass) {
			change(h, c, func(c *v1alpha1.MachineClass) { c.Provider = "aws" })
		}, false, `"aws"`},
		"class is gone, no VM comes": {vanish, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.controller.Drivers = registry.Only("fake", fake.New(fake.Config{}))
			h.Driver.Configure(func(config *fake.Config) { config.IgnoreContext = true })
			if tc.fails {
				h.Driver.Fail(fake.CreateMachine, codes.Unavailable)
			}
			h.declare(func(m *v1alpha1.Machine) { m.Finalizers = []string{v1alpha1.FinalizerMCM} })
			h.Pass()
			tc.change(h, newClass(h.Key.Namespace))
			h.delete()
			h.Pass()
			if h.gone() {
				t.Fatal("the Machine is gone before the call has ended")
			}
			h.Settle()
			if h.gone() != (len(h.Driver.VMs()) == 0) {
				t.Fatalf("the Machine is gone: %v, VMs: %v", h.gone(), h.Driver.VMs())
			}
			if !tc.fails {
				wantStatus(t, h.machine(), want4{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "VM sim:///m1 cannot be deleted"})
				if got := h.machine().Status.LastOperation.Description; !strings.Contains(got, tc.says) {
					t.Errorf("%q does not say %q", got, tc.says)
				}
			}
		})
	}
}
