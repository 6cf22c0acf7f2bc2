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

// TestMachine_MissingInputsAreReported checks that the status and one event report whatever prevents a creation, that the driver is
// not called, and that the Machine continues after the problem is fixed.
func TestMachine_MissingInputsAreReported(t *testing.T) {
	cases := map[string]struct {
		machine func(*v1alpha1.Machine)
		spoil   func(h *harness)
		repair  func(h *harness)
		message string
	}{
		"class": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				h.remove(newClass(h.Key.Namespace))
			},
			repair:  func(h *harness) { h.create(newClass(h.Key.Namespace)) },
			message: `MachineClass "small" not found in namespace "shoot"`,
		},
		"secret": {
			spoil:   func(h *harness) { h.remove(newSecret(h.Key.Namespace)) },
			repair:  func(h *harness) { h.create(newSecret(h.Key.Namespace)) },
			message: `Secret "shoot/small" of MachineClass "small" not found`,
		},
		"secret elsewhere": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.SecretRef.Namespace = "garden" })
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.SecretRef.Namespace = "" })
			},
			message: `Secret "garden/small" of MachineClass "small" must be in the namespace of the class, "shoot"`,
		},
		"user data": {
			spoil: func(h *harness) {
				change(h, newSecret(h.Key.Namespace), func(s *corev1.Secret) { delete(s.Data, "userData") })
			},
			repair: func(h *harness) {
				change(h, newSecret(h.Key.Namespace), func(s *corev1.Secret) { s.Data["userData"] = []byte("x") })
			},
			message: `No Secret of MachineClass "small" has the key "userData"`,
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
			message: `No Secret of MachineClass "small" has the key "userData"`,
		},
		"a class that is not being deleted": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = []string{"example.com/held-by-others"} })
				h.remove(newClass(h.Key.Namespace))
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
				h.create(newClass(h.Key.Namespace))
			},
			message: `MachineClass "small" is being deleted`,
		},
		"a valid class": {
			spoil: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = &v1alpha1.NodeTemplate{Region: "moon"} })
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = nil })
			},
			message: `MachineClass "small" is not valid`,
		},
		"the right kind": {
			machine: func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "AWSMachineClass" },
			repair: func(h *harness) {
				change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.Class.Kind = v1alpha1.MachineClassKind })
			},
			message: `Class kind "AWSMachineClass" of machine "m1" is not supported`,
		},
		"the right driver": {
			spoil: func(h *harness) {
				h.controller.Drivers = registry.Only("fake", fake.New(fake.Config{}))
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Provider = "aws" })
			},
			repair: func(h *harness) {
				change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Provider = "fake" })
			},
			message: `MachineClass "small" is for driver "aws", but this manager has the driver "fake"`,
		},
		"a complete node template": {
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
			message: `MachineClass "small" is not valid: [nodeTemplate.capacity[gpu]: Required value: needed to scale from zero, nodeTemplate.zone: Required value: needed to scale from zero]`,
		},
		"a valid timeout": {
			machine: func(m *v1alpha1.Machine) {
				disabled(false)(m)
				m.Spec.MachineHealthTimeout = &metav1.Duration{Duration: -time.Hour}
			},
			repair: func(h *harness) {
				change(h, h.machine(), func(m *v1alpha1.Machine) { m.Spec.MachineHealthTimeout = nil })
			},
			message: `spec.healthTimeout: Invalid value: "-1h0m0s": must not be negative`,
		},
		"kind and name": {
			machine: func(m *v1alpha1.Machine) { m.Spec.Class = v1alpha1.ClassSpec{} },
			repair: func(h *harness) {
				change(h, h.machine(), func(m *v1alpha1.Machine) {
					m.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: className}
				})
			},
			message: `spec.class.name: Required value`,
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
			wantStatus(t, h.machine(), statusFields{v1alpha1.MachineCrashLoopBackOff, v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, tc.message})
			if code := h.machine().Status.LastOperation.ErrorCode; code != "" {
				t.Errorf("error code %q without a driver call", code)
			}
			if result.RequeueAfter != creationTimeout {
				t.Errorf("the next pass is due in %v, want the creation timeout, since only an event can change anything before that", result.RequeueAfter)
			}
			h.Settle()
			if events := h.takeEvents(); len(events) != 1 || !strings.Contains(events[0], tc.message) {
				t.Errorf("events %q, want one with %q", events, tc.message)
			}
			if len(h.methods()) != 0 {
				t.Errorf("the driver was called: %v", h.methods())
			}

			tc.repair(h)
			h.Settle()
			if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
				t.Errorf("phase %q after the fix, want Pending", got)
			}
		})
	}
}

// TestMachine_CreationWaitsForClassFinalizer checks that the creation waits until the class has our finalizer, since the class must not
// be removed while a VM exists. Nothing is reported, since the finalizer is added soon.
func TestMachine_CreationWaitsForClassFinalizer(t *testing.T) {
	h := newHarness(t)
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
	h.declare()
	h.Settle()
	if len(h.methods()) != 0 || h.machine().Status.CurrentStatus.Phase != "" || len(h.takeEvents()) != 0 {
		t.Fatalf("driver calls %v, phase %q, want neither", h.methods(), h.machine().Status.CurrentStatus.Phase)
	}
	change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.Finalizers = []string{v1alpha1.FinalizerMCM} })
	h.Settle()
	if got := h.machine().Status.CurrentStatus.Phase; got != v1alpha1.MachinePending {
		t.Errorf("phase %q after the class has the finalizer", got)
	}
}

// TestMachine_FailsWithoutInputsAfterTimeout checks that a Machine becomes Failed after the creation timeout even if the driver was
// never called, so that its MachineSet replaces it.
func TestMachine_FailsWithoutInputsAfterTimeout(t *testing.T) {
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

// TestMachine_DeletionWaitsForCreationWithoutClass checks that a deletion waits for a running creation if the class no longer exists,
// and that the Machine then remains because of the new VM.
func TestMachine_DeletionWaitsForCreationWithoutClass(t *testing.T) {
	vanish := func(h *harness, c *v1alpha1.MachineClass) {
		change(h, c, func(c *v1alpha1.MachineClass) { c.Finalizers = nil })
		h.remove(c)
	}
	for name, tc := range map[string]struct {
		change  func(h *harness, class *v1alpha1.MachineClass)
		fails   bool
		message string
	}{
		"class is missing": {vanish, false, "not found"},
		"class has another driver": {func(h *harness, c *v1alpha1.MachineClass) {
			change(h, c, func(c *v1alpha1.MachineClass) { c.Provider = "aws" })
		}, false, `"aws"`},
		"class is missing, no VM was created": {vanish, true, ""},
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
				t.Fatal("the Machine was removed before the call returned")
			}
			h.Settle()
			if h.gone() != (len(h.Driver.VMs()) == 0) {
				t.Fatalf("deleted: %v, VMs: %v", h.gone(), h.Driver.VMs())
			}
			if !tc.fails {
				wantStatus(t, h.machine(), statusFields{v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, "VM sim:///m1 cannot be deleted"})
				if got := h.machine().Status.LastOperation.Description; !strings.Contains(got, tc.message) {
					t.Errorf("description %q does not contain %q", got, tc.message)
				}
			}
		})
	}
}
