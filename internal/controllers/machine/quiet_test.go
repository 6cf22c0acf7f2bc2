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
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestNothingIsWrittenWhenNothingChanged: in every state in which a Machine can rest, a
// further pass writes nothing and calls nothing, in this process and in the next.
func TestNothingIsWrittenWhenNothingChanged(t *testing.T) {
	cases := map[string]func(w *world){
		"Running":            func(w *world) { w.running() },
		"Pending":            func(w *world) { w.declare(); w.settle() },
		"Unknown":            func(w *world) { w.running(); w.join(notReady); w.settle() },
		"Unknown, node gone": func(w *world) { w.running(); w.dropNode(); w.settle() },
		"Failed": func(w *world) {
			w.declare()
			w.settle()
			w.settleAfter(creationTimeout)
		},
		"not creatable": func(w *world) { w.remove(newSecret(w.namespace)); w.declare(); w.settle() },
		"not created": func(w *world) {
			w.driver.fails(instance.MethodCreate, codes.ResourceExhausted, codes.ResourceExhausted)
			w.declare()
			w.settle()
		},
		"not deleted": func(w *world) {
			w.running()
			w.driver.fails(instance.MethodDelete, codes.PermissionDenied, codes.PermissionDenied)
			w.delete()
			w.settle()
		},
		"not deleted, draining": func(w *world) {
			w.running()
			w.draining(forPod("web"))
			w.delete()
			w.settle()
		},
		"not deleted, drain fails": func(w *world) {
			w.running()
			w.draining(misconfigured())
			w.delete()
			w.settle()
		},
		"Unknown, others first": func(w *world) {
			w.declare(func(m *v1alpha1.Machine) { m.Name, m.UID = "other", "other" }, inPhase(v1alpha1.MachineFailed), pooled)
			w.declare(inPhase(v1alpha1.MachineUnknown), pooled)
			w.settle()
			w.settleAfter(healthTimeout)
		},
		"with virtual capacity": func(w *world) {
			change(w, newClass(w.namespace), func(c *v1alpha1.MachineClass) { c.NodeTemplate = virtual(2) })
			w.running()
		},
		"in a bad template": func(w *world) {
			w.running(func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"bad key": "v", "good": "v"}
			})
		},
		"in a rich template": func(w *world) {
			w.running(func(m *v1alpha1.Machine) {
				m.Spec.NodeTemplateSpec.Labels = map[string]string{"b": "2", "a": "1"}
				m.Spec.NodeTemplateSpec.Spec.Taints = []corev1.Taint{{Key: "z", Effect: corev1.TaintEffectNoSchedule}, {Key: "a", Effect: corev1.TaintEffectNoExecute}}
			})
		},
	}
	for name, given := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			given(w)
			w.told()
			w.writes, w.driver.calls = nil, nil
			for range 3 {
				w.clock.Step(time.Millisecond)
				w.pass()
				if w.call() {
					t.Fatalf("the driver is called again: %v", w.driver.calls)
				}
			}
			if len(w.writes) != 0 {
				t.Errorf("writes without a change:\n%s", w.said())
			}
			if events := w.told(); len(events) != 0 {
				t.Errorf("events without a change: %q", events)
			}
			w.restart(w.driver)
			w.pass()
			if len(w.writes) != 0 {
				t.Errorf("writes after a restart:\n%s", w.said())
			}
		})
	}
}

// pooled puts a Machine into a pool.
func pooled(m *v1alpha1.Machine) { metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelKeyName, "a") }

// TestHeartbeatsAreNotCopied: a node that only says that it is still alive costs nothing.
func TestHeartbeatsAreNotCopied(t *testing.T) {
	w := newWorld(t)
	w.running()
	beat := ready
	beat.LastHeartbeatTime = metav1.NewTime(w.clock.Now().Add(time.Minute))
	w.join(beat)
	w.settle()
	if len(w.writes) != 0 {
		t.Errorf("writes for a heartbeat:\n%s", w.said())
	}
}

// indiscreet is a driver whose every error quotes what it was given.
type indiscreet struct{ *scripted }

func quote(secret *corev1.Secret) error {
	var all []string
	for _, value := range secret.Data {
		all = append(all, string(value))
	}
	return status.Error(codes.Internal, "cannot make anything of "+strings.Join(all, " and "))
}

func (d indiscreet) CreateMachine(_ context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return nil, quote(req.Secret)
}

func (d indiscreet) DeleteMachine(_ context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return nil, quote(req.Secret)
}

// TestNoSecretIsWritten: whatever a driver says, no value of a Secret and no token
// reaches a Machine, a node or an event.
func TestNoSecretIsWritten(t *testing.T) {
	w := newWorld(t)
	w.restart(instrument.Wrap(indiscreet{w.driver}, instrument.Options{}))
	w.declare()
	w.settle()
	tokens := w.tokens()
	if len(tokens) != 1 {
		t.Fatalf("%d tokens, want 1", len(tokens))
	}
	events := w.told()
	w.delete()
	w.settle()
	events = append(events, w.told()...)
	if got := w.machine().Status.LastOperation.Description; !strings.Contains(got, "cannot make anything of") {
		t.Fatalf("description %q: the driver's words are lost altogether", got)
	}
	for _, secret := range []string{"s3cr3t-k3y-of-the-cloud", "hunter2", string(tokens[0].Data["token-secret"])} {
		for _, made := range w.writes {
			if made.what != "create Secret" && strings.Contains(made.body, secret) {
				t.Errorf("%q is in %s: %s", secret, made.what, made.body)
			}
		}
		for _, event := range events {
			if strings.Contains(event, secret) {
				t.Errorf("%q is in the event %q", secret, event)
			}
		}
	}
}
