package machineset

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestAFailedPassCountsOnTheSafeSide: its status counts each Machine that may exist, and none as
// usable that may be on its way out. A deployment goes by that.
func TestAFailedPassCountsOnTheSafeSide(t *testing.T) {
	forbidden := apierrors.NewForbidden(resource, "", errors.New("no"))
	for reason, test := range map[string]struct {
		replicas int32
		machines int
		verb     string
		nth      int
		err      error
		done     bool
		want     string
	}{
		"a creation timed out":              {5, 2, "create", 1, apierrors.NewTimeoutError("etcd", 1), false, "3 exist, 2 ready, 2 available"},
		"it did, and happened all the same": {5, 2, "create", 1, apierrors.NewTimeoutError("etcd", 1), true, "3 exist, 2 ready, 2 available"},
		"the second of three did":           {5, 2, "create", 2, errLost, true, "5 exist, 2 ready, 2 available"},
		"a creation was refused":            {5, 2, "create", 1, forbidden, false, "2 exist, 2 ready, 2 available"},
		"the second of three was":           {5, 2, "create", 2, forbidden, false, "4 exist, 2 ready, 2 available"},
		"one of two deletions was refused":  {1, 3, "delete", 1, forbidden, false, "3 exist, 2 ready, 2 available"},
		"nobody knows of one of two":        {1, 3, "delete", 1, errLost, true, "3 exist, 1 ready, 1 available"},
	} {
		t.Run(reason, func(t *testing.T) {
			objects := []client.Object{newSet(test.replicas)}
			for _, m := range machines(test.machines) {
				objects = append(objects, m)
			}
			s := newServer(objects...)
			asked := 0
			s.answer = func(verb string, _ client.Object) (error, bool) {
				if verb != test.verb {
					return nil, false
				}
				if asked++; asked != test.nth {
					return nil, false
				}
				return test.err, test.done
			}
			c := s.newController()
			if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, test.err) {
				t.Errorf("got the error %v", err)
			}
			if got := s.counters(); got != test.want+"; generation 0" {
				t.Errorf("got %s, want %s", got, test.want)
			}
			for range 3 {
				s.catchUp()
				pass(t, c)
			}
			s.catchUp()
			if status := s.set().Status; int(status.Replicas) != len(s.all()) || len(status.Conditions) > 0 {
				t.Errorf("in the end, of %d machines: %s", len(s.all()), s.counters())
			}
		})
	}
}
