package machineset

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/pool/reserve"
)

// TestMachinesInExcessAreFreedFirst: when a set grows, Machines in excess are for pods before others are made,
// and none is made while one cannot be freed. What is made takes their place.
func TestMachinesInExcessAreFreedFirst(t *testing.T) {
	for name, failure := range map[string]error{
		"nothing fails": nil,
		"it changed":    apierrors.NewConflict(resource, "b", errors.New("it was modified")),
		"it is refused": apierrors.NewForbidden(resource, "b", errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newSet(4, excess(1)), machine("a"), machine("b", inExcess))
			c := s.newController()
			s.answer = func(verb string, object client.Object) (error, bool) {
				if verb == "patch" && object.GetName() == "b" {
					return failure, false
				}
				return nil, false
			}
			_, err := c.Reconcile(t.Context(), request)
			if failure != nil {
				if n := s.count("create Machine"); n > 0 {
					t.Errorf("%d machines are made, while one is not for pods: %q", n, s.writes)
				}
				return
			}
			must(err)
			made := slices.IndexFunc(s.writes, func(write string) bool { return strings.HasPrefix(write, "create Machine") })
			freed := slices.IndexFunc(s.writes, func(write string) bool { return strings.HasPrefix(write, "patch Machine") })
			if freed < 0 || made < freed {
				t.Errorf("it is freed by write %d, and the first is made by write %d: %q", freed, made, s.writes)
			}
			held := 0
			for _, machine := range s.all() {
				if reserve.In(&machine.Spec) {
					held++
				}
			}
			if len(s.all()) != 4 || held != 1 || reserve.In(&s.all()["b"].Spec) {
				t.Errorf("of %d machines %d are in excess, want 1 of 4, and not b", len(s.all()), held)
			}
		})
	}
}
