package machine

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/status"
)

// TestController_NoWritesWithoutChange checks that in every state in which a Machine can remain, further passes
// cause no writes or calls, also after a restart.
func TestController_NoWritesWithoutChange(t *testing.T) {
	cases := map[string]func(h *harness){
		"Running":               func(h *harness) { h.running() },
		"Pending":               func(h *harness) { h.declare(); h.Settle() },
		"Unknown":               func(h *harness) { h.running(); h.join(notReady); h.Settle() },
		"Unknown, node missing": func(h *harness) { h.running(); h.dropNode(); h.Settle() },
		"Failed": func(h *harness) {
			h.declare()
			h.Settle()
			h.SettleAfter(creationTimeout)
		},
		"not creatable": func(h *harness) { h.remove(newSecret(h.Key.Namespace)); h.declare(); h.Settle() },
		"not created": func(h *harness) {
			h.Driver.Fail(fake.CreateMachine, codes.ResourceExhausted, codes.ResourceExhausted)
			h.declare()
			h.Settle()
		},
		"not deleted": func(h *harness) {
			h.running()
			h.Driver.Fail(fake.DeleteMachine, codes.PermissionDenied, codes.PermissionDenied)
			h.delete()
			h.Settle()
		},
		"not deleted, draining": func(h *harness) {
			h.running()
			h.draining(forPod("web"))
			h.delete()
			h.Settle()
		},
		"not deleted, drain fails": func(h *harness) {
			h.running()
			h.draining(misconfigured())
			h.delete()
			h.Settle()
		},
		"Unknown, replacement delayed": func(h *harness) {
			h.declare(func(m *v1alpha1.Machine) { m.Name, m.UID = "other", "other" }, inPhase(v1alpha1.MachineFailed), pooled)
			h.declare(inPhase(v1alpha1.MachineUnknown), pooled)
			h.Settle()
			h.SettleAfter(healthTimeout)
		},
		"with virtual capacity": func(h *harness) {
			change(h, newClass(h.Key.Namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(2) })
			h.running()
		},
		"with an invalid template": func(h *harness) {
			h.running(func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"bad key": "v", "good": "v"}
			})
		},
		"with a full template": func(h *harness) {
			h.running(func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"b": "2", "a": "1"}
				m.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "z", Effect: corev1.TaintEffectNoSchedule}, {Key: "a", Effect: corev1.TaintEffectNoExecute}}
			})
		},
	}
	for name, given := range cases {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			given(h)
			h.takeEvents()
			h.Writes = nil
			h.Driver.ForgetCalls()
			for range 3 {
				h.Clock.Step(time.Millisecond)
				h.Pass()
				if h.Call() {
					t.Fatalf("the driver is called again: %v", h.methods())
				}
			}
			if len(h.Writes) != 0 {
				t.Errorf("unexpected writes:\n%s", h.LastWrites())
			}
			if events := h.takeEvents(); len(events) != 0 {
				t.Errorf("unexpected events: %q", events)
			}
			drainer := h.controller.Drain.Drainer
			h.restart()
			h.controller.Drain.Drainer = drainer
			h.Pass()
			if len(h.Writes) != 0 {
				t.Errorf("writes after a restart:\n%s", h.LastWrites())
			}
		})
	}
}

// pooled adds a Machine to a pool.
func pooled(m *v1alpha1.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelKeyName, "a") }

// TestMachine_HeartbeatsCauseNoWrites checks that heartbeats cause no writes.
func TestMachine_HeartbeatsCauseNoWrites(t *testing.T) {
	h := newHarness(t)
	h.running()
	beat := ready
	beat.LastHeartbeatTime = metav1.NewTime(h.Clock.Now().Add(time.Minute))
	h.join(beat)
	h.Settle()
	if len(h.Writes) != 0 {
		t.Errorf("writes for a heartbeat:\n%s", h.LastWrites())
	}
}

// quote returns an error that quotes a Secret.
func quote(secret *corev1.Secret) error {
	var all []string
	for _, value := range secret.Data {
		all = append(all, string(value))
	}
	return status.Error(codes.Internal, "cannot use "+strings.Join(all, " and "))
}

// TestMachine_SecretsAreNotDisclosed checks that no value of a Secret and no token gets into a Machine, a node or an event,
// whatever error a driver returns.
func TestMachine_SecretsAreNotDisclosed(t *testing.T) {
	h := newHarness(t)
	h.Driver.OnCreate(func(_ context.Context, req *driver.CreateMachineRequest, _ func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
		return nil, quote(req.Secret)
	})
	h.Driver.OnDelete(func(_ context.Context, req *driver.DeleteMachineRequest, _ func() (*driver.DeleteMachineResponse, error)) (*driver.DeleteMachineResponse, error) {
		return nil, quote(req.Secret)
	})
	h.restartWith(instrument.Wrap(h.Driver, instrument.Options{}))
	h.declare()
	h.Settle()
	tokens := h.tokens()
	if len(tokens) != 1 {
		t.Fatalf("%d tokens, want 1", len(tokens))
	}
	events := h.takeEvents()
	h.delete()
	h.Settle()
	events = append(events, h.takeEvents()...)
	if got := h.machine().Status.LastOperation.Description; !strings.Contains(got, "cannot use") {
		t.Fatalf("description %q lacks the driver's message", got)
	}
	for _, secret := range []string{"s3cr3t-k3y-of-the-cloud", "hunter2", string(tokens[0].Data["token-secret"])} {
		for _, made := range h.Writes {
			if made.What != "create Secret" && strings.Contains(made.Body, secret) {
				t.Errorf("%q is in %s: %s", secret, made.What, made.Body)
			}
		}
		for _, event := range events {
			if strings.Contains(event, secret) {
				t.Errorf("%q is in the event %q", secret, event)
			}
		}
	}
}
