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

// TestConsole checks that the console is read only if the node does not exist or is unhealthy, and never for a
// pool. An unreadable console does not prevent an explanation.
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
		reads  bool
		want   []string
		unread string
	}{
		"running":     {phase: v1alpha1.MachineRunning},
		"not created": {phase: v1alpha1.MachineCrashLoopBackOff},
		"pending":     {phase: v1alpha1.MachinePending, reads: true, want: []string{"join: no"}},
		"failed":      {phase: v1alpha1.MachineFailed, reads: true, want: []string{"join: no"}},
		"not running": {phase: v1alpha1.MachinePending, reads: true, err: apierrors.NewConflict(logs, vm.Name, errors.New("the VM is not running"))},
		"not allowed": {phase: v1alpha1.MachinePending, reads: true, err: apierrors.NewForbidden(logs, vm.Name, errors.New("not permitted")), unread: "not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.control.Get(t.Context(), key, machine); err != nil {
				t.Fatal(err)
			}
			machine.Status.CurrentStatus.Phase = c.phase
			if err := s.control.Status().Update(t.Context(), machine); err != nil {
				t.Fatal(err)
			}
			read := false
			reader := Reader{Control: s.control, Console: func(_ context.Context, of types.NamespacedName) ([]byte, error) {
				read = true
				if of.Namespace != s.Namespace || of.Name != vm.Name {
					t.Errorf("reads the console of %s", of)
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
			if diff := cmp.Diff(c.want, got.Console); diff != "" || read != c.reads {
				t.Errorf("read: %t; (-want +got)\n%s", read, diff)
			}
			if c.unread != "" != slices.ContainsFunc(got.Unread, func(text string) bool {
				return strings.Contains(text, "Console of VirtualMachine "+s.Namespace+"/vm-1") && strings.Contains(text, c.unread)
			}) {
				t.Errorf("unread: %q", got.Unread)
			}
			read = false
			if _, err := (explainer{reader}).Deployment(t.Context(), types.NamespacedName{Namespace: s.Namespace, Name: deployment.Name}); err != nil || read {
				t.Errorf("the explanation of a deployment reads a console: %t, %v", read, err)
			}
		})
	}
}
