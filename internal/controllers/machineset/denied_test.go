package machineset

import (
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestMachineSet_DenialIsReportedWithAnyCode checks that the denial of a webhook is reported and retried, even if it has the
// code of a conflict or of a missing object.
func TestMachineSet_DenialIsReportedWithAnyCode(t *testing.T) {
	for name, test := range map[string]struct {
		verb, reason string
		set          *v1alpha1.MachineSet
		machines     []*v1alpha1.Machine
		code         int32
	}{
		"a deletion, as a conflict":  {"delete", v1alpha1.MachineSetReasonFailedDelete, newSet(1), machines(2), http.StatusConflict},
		"a deletion, as not found":   {"delete", v1alpha1.MachineSetReasonFailedDelete, newSet(1), machines(2), http.StatusNotFound},
		"a deletion, as forbidden":   {"delete", v1alpha1.MachineSetReasonFailedDelete, newSet(1), machines(2), http.StatusForbidden},
		"a creation, as a conflict":  {"create", v1alpha1.MachineSetReasonFailedCreate, newSet(1), nil, http.StatusConflict},
		"an adoption, as not found":  {"patch", v1alpha1.MachineSetReasonFailedAdopt, newSet(1), machines(1, ownerless), http.StatusNotFound},
		"an adoption, as a conflict": {"patch", v1alpha1.MachineSetReasonFailedAdopt, newSet(1), machines(1, ownerless), http.StatusConflict},
		"a change, as a conflict": {"patch", v1alpha1.MachineSetReasonFailedUpdate, newSet(1, withTemplate(func(spec *v1alpha1.MachineSpec) {
			spec.NodeTemplateSpec.Labels = map[string]string{"new": "label"}
		})), machines(1), http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{test.set}
			for _, m := range test.machines {
				objects = append(objects, m)
			}
			s := newServer(objects...)
			denials := 0
			s.respond = func(verb string, object client.Object) (error, bool) {
				if _, ok := object.(*v1alpha1.Machine); !ok || verb != test.verb {
					return nil, false
				}
				denials++
				return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: test.code, Message: "busy, try later"}}, false
			}
			c := s.newController()
			for attempt := 1; attempt <= 3; attempt++ {
				if _, err := c.Reconcile(t.Context(), request); err == nil {
					t.Fatal("the pass succeeded")
				}
				s.catchUp()
				if denials != attempt {
					t.Fatalf("%d denials in %d passes", denials, attempt)
				}
			}
			conditions := s.set().Status.Conditions
			if len(conditions) != 1 || conditions[0].Reason != test.reason {
				t.Errorf("conditions %+v, want %s", conditions, test.reason)
			}
			s.respond = nil
			for range 3 {
				pass(t, c)
				s.catchUp()
			}
			if n := s.activeCount(); n != 1 || len(s.set().Status.Conditions) > 0 {
				t.Errorf("%d machines, conditions %+v", n, s.set().Status.Conditions)
			}
		})
	}
}
