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

// TestMachineSet_ReleasesReserveBeforeCreation checks that when a set grows, Machines of the reserve are released for Pods
// before others are created, and that none is created while a release fails. New Machines then replace the
// reserve.
func TestMachineSet_ReleasesReserveBeforeCreation(t *testing.T) {
	for name, failure := range map[string]error{
		"nothing fails": nil,
		"conflict":      apierrors.NewConflict(resource, "b", errors.New("it was modified")),
		"refused":       apierrors.NewForbidden(resource, "b", errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newSet(4, excess(1)), machine("a"), machine("b", inExcess))
			c := s.newController()
			s.respond = func(verb string, object client.Object) (error, bool) {
				if verb == "patch" && object.GetName() == "b" {
					return failure, false
				}
				return nil, false
			}
			_, err := c.Reconcile(t.Context(), request)
			if failure != nil {
				if n := s.count("create Machine"); n > 0 {
					t.Errorf("%d machines were created before the release: %q", n, s.writes)
				}
				return
			}
			must(err)
			made := slices.IndexFunc(s.writes, func(write string) bool { return strings.HasPrefix(write, "create Machine") })
			freed := slices.IndexFunc(s.writes, func(write string) bool { return strings.HasPrefix(write, "patch Machine") })
			if freed < 0 || made < freed {
				t.Errorf("the release is write %d, the first creation is write %d: %q", freed, made, s.writes)
			}
			held := 0
			for _, machine := range s.all() {
				if reserve.In(&machine.Spec) {
					held++
				}
			}
			if len(s.all()) != 4 || held != 1 || reserve.In(&s.all()["b"].Spec) {
				t.Errorf("%d machines, %d of them in the reserve; want 1 of 4, and not b", len(s.all()), held)
			}
		})
	}
}
