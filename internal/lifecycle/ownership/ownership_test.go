package ownership_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
)

// TestBefore checks that of two owners of one instance exactly one precedes the other, in whichever order they
// are compared.
func TestBefore(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	for name, tc := range map[string]struct{ first, second ownership.Owner }{
		"certain":                   {ownership.Owner{Key: types.NamespacedName{Name: "b"}, Certain: true, Since: late}, ownership.Owner{Key: types.NamespacedName{Name: "a"}, Since: early}},
		"older":                     {ownership.Owner{Key: types.NamespacedName{Name: "b"}, Since: early}, ownership.Owner{Key: types.NamespacedName{Name: "a"}, Since: late}},
		"older, both certain":       {ownership.Owner{Key: types.NamespacedName{Name: "b"}, Certain: true, Since: early}, ownership.Owner{Key: types.NamespacedName{Name: "a"}, Certain: true, Since: late}},
		"by name, at the same time": {ownership.Owner{Key: types.NamespacedName{Name: "a"}, Since: early}, ownership.Owner{Key: types.NamespacedName{Name: "b"}, Since: early}},
		"older, being deleted":      {ownership.Owner{Key: types.NamespacedName{Name: "b"}, Since: early, Deleting: true}, ownership.Owner{Key: types.NamespacedName{Name: "a"}, Since: late}},
	} {
		if !tc.first.Before(tc.second) || tc.second.Before(tc.first) {
			t.Errorf("%s: %t and %t", name, tc.first.Before(tc.second), tc.second.Before(tc.first))
		}
	}
}
