package takeover

import (
	"fmt"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestTakeover_SwapsProcessesDuringPreservation alternates between our process and MCM's, while a user requests by an
// annotation of the node that its Machine be preserved when it fails, and then cancels that. It switches whenever
// the preservation state of the Machine or the node has changed.
func TestTakeover_SwapsProcessesDuringPreservation(t *testing.T) {
	tier.All(t)
	t.Parallel()
	stories := map[string]func(*testing.T){}
	for which, other := range otherHalf {
		stories[string(which)] = func(t *testing.T) {
			f := declare(t, "20-running", "scaled")
			startMCMs(t, f.Env, f.provider, other, healthTimeout)
			ours, cfg := access(t, f.Env, f.gate), manager.Config{Settings: manager.Settings{Half: which}}
			cfg.Health.Timeout = healthTimeout
			s := &swapped{fleet: f, turns: [2]func() func(){
				func() func() { return start(t, f.Env, f.provider, ours, cfg) },
				func() func() { return startMCMs(t, f.Env, f.provider, which, healthTimeout) },
			}}
			s.swap()
			f.settles(4, "c1")
			names := f.names()
			name := names[1]
			s.request(name, `"when-failed"`)
			s.until(name, s.hasHeard) // MCM replaces a Machine that fails before
			f.sicken(name)
			s.until(name, s.isKept)
			if now := f.names(); fmt.Sprint(now) != fmt.Sprint(names) {
				t.Errorf("there are %q, want %q", now, names)
			}
			s.request(name, "null")
			s.until(name, func(name string) bool { return s.preservation(name) == "" })
			f.settles(4, "c1")
			if made, _ := f.provider.did(); len(made) != 5 {
				t.Errorf("%d VMs were made, want 5: %q", len(made), made)
			}
			if s.swaps < 2 {
				t.Errorf("it was swapped %d times", s.swaps)
			}
			t.Logf("%d swaps", s.swaps)
		}
	}
	together(t, oneHalfOfEach(t, stories))
}

// swapped is a fleet with a process that is alternately ours and MCM's.
type swapped struct {
	*fleet
	turns [2]func() (stop func())
	stop  func()
	swaps int
}

// swap replaces the running process by the next one.
func (s *swapped) swap() {
	if s.stop != nil {
		s.stop()
		s.swaps++
	}
	s.stop = s.turns[s.swaps%2]()
}

// until switches at each change until a condition holds.
func (s *swapped) until(name string, done func(name string) bool) {
	s.t.Helper()
	for !done(name) {
		was := s.preservation(name)
		s.eventually(func(g gomega.Gomega) {
			g.Expect(done(name) || s.preservation(name) != was).To(gomega.BeTrue(), "nothing changes: %s", was)
		})
		s.swap()
	}
}

// request sets the annotation of a node, or removes it with null.
func (s *swapped) request(node, value string) {
	s.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationKeyPreserve, value)
	must(s.t, s.Client.Patch(s.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, patch)))
}

// preservation returns the preservation state of a Machine and its node, or an empty string if the Machine is gone.
func (s *swapped) preservation(name string) string {
	s.t.Helper()
	machine, node := s.machine(name), &corev1.Node{}
	err := s.Client.Get(s.t.Context(), client.ObjectKeyFromObject(machine), machine)
	if apierrors.IsNotFound(err) {
		return ""
	}
	must(s.t, err)
	must(s.t, client.IgnoreNotFound(s.Client.Get(s.t.Context(), client.ObjectKey{Name: name}, node)))
	output := fmt.Sprint(machine.Status.CurrentStatus.Phase, machine.Status.CurrentStatus.PreserveExpiryTime != nil, machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve],
		node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM])
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1alpha1.TaintKeyPreserved {
			output += " " + taint.Key
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == v1alpha1.NodePreserved {
			output += fmt.Sprint(" ", condition.Status)
		}
	}
	return output
}

// hasHeard reports whether the annotation of the node has reached the Machine.
func (s *swapped) hasHeard(name string) bool {
	s.t.Helper()
	machine := s.machine(name)
	must(s.t, s.Client.Get(s.t.Context(), client.ObjectKeyFromObject(machine), machine))
	return machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve] == "when-failed"
}

// isKept reports whether all objects show that a Failed Machine is preserved.
func (s *swapped) isKept(name string) bool {
	return s.preservation(name) == fmt.Sprint(v1alpha1.MachineFailed, true, "when-failed", "true")+" "+v1alpha1.TaintKeyPreserved+" True"
}
