package gather

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestConsole: what a guest says is read while its node is not there or not well, and never for a whole pool. That
// it cannot be read is no reason to explain nothing.
func TestConsole(t *testing.T) {
	tier.All(t)
	s := newServer(t)
	vm := put(s, s.control, &vmv1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "vm-1"}, Spec: vmv1alpha1.VirtualMachineSpec{CPUs: 1, UUID: uuid},
	}, nil)
	deployment := s.deployment() // with the Machine pool-a-1
	machine := &v1alpha1.Machine{}
	key := types.NamespacedName{Namespace: s.Namespace, Name: "pool-a-1"}
	logs := schema.GroupResource{Group: "subresources.vm.metropolis.monogon.dev", Resource: "virtualmachines/log"}
	for name, c := range map[string]struct {
		phase  v1alpha1.MachinePhase
		err    error
		asks   bool
		shows  []string
		unread string
	}{
		"running":     {phase: v1alpha1.MachineRunning},
		"not created": {phase: v1alpha1.MachineCrashLoopBackOff},
		"pending":     {phase: v1alpha1.MachinePending, asks: true, shows: []string{"join: no"}},
		"failed":      {phase: v1alpha1.MachineFailed, asks: true, shows: []string{"join: no"}},
		"not running": {phase: v1alpha1.MachinePending, asks: true, err: apierrors.NewConflict(logs, vm.Name, errors.New("it does not run"))},
		"not allowed": {phase: v1alpha1.MachinePending, asks: true, err: apierrors.NewForbidden(logs, vm.Name, errors.New("not you")), unread: "not you"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.control.Get(t.Context(), key, machine); err != nil {
				t.Fatal(err)
			}
			machine.Status.CurrentStatus.Phase = c.phase
			if err := s.control.Status().Update(t.Context(), machine); err != nil {
				t.Fatal(err)
			}
			asked := false
			reader := Reader{Control: s.control, Console: func(_ context.Context, of types.NamespacedName) ([]byte, error) {
				asked = true
				if of.Namespace != s.Namespace || of.Name != vm.Name {
					t.Errorf("asks for %s", of)
				}
				if c.err != nil {
					return nil, c.err
				}
				return []byte("join: no\n"), nil
			}}
			got, err := explainer{reader}.Machine(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.shows, got.Console); diff != "" || asked != c.asks {
				t.Errorf("asked: %t; (-want +got)\n%s", asked, diff)
			}
			if c.unread != "" != slices.ContainsFunc(got.Unread, func(text string) bool {
				return strings.Contains(text, "Console of VirtualMachine "+s.Namespace+"/vm-1") && strings.Contains(text, c.unread)
			}) {
				t.Errorf("could not read: %q", got.Unread)
			}
			asked = false
			if _, err := (explainer{reader}).Deployment(t.Context(), types.NamespacedName{Namespace: s.Namespace, Name: deployment.Name}); err != nil || asked {
				t.Errorf("asks for a console to explain a deployment: %t, %v", asked, err)
			}
		})
	}
}
