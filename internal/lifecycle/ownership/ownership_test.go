package ownership_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
)

// TestBefore: of two that name one instance, exactly one is before the other, whoever asks.
func TestBefore(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	for name, tc := range map[string]struct{ first, second ownership.Owner }{
		"certain":             {ownership.Owner{Key: types.NamespacedName{Name: "b"}, Certain: true, Since: late}, ownership.Owner{Key: types.NamespacedName{Name: "a"}, Since: early}},
		"there first":         {ownership.Owner{Key: types.NamespacedName{Name: "b"}, Since: early}, ownership.Owner{Key: types.NamespacedName{Name: "a"}, Since: late}},
		"certain, both":       {ownership.Owner{Key: types.NamespacedName{Name: "b"}, Certain: true, Since: early}, ownership.Owner{Key: types.NamespacedName{Name: "a"}, Certain: true, Since: late}},
		"by name, if by none": {ownership.Owner{Key: types.NamespacedName{Name: "a"}, Since: early}, ownership.Owner{Key: types.NamespacedName{Name: "b"}, Since: early}},
		"deletion is no loss": {ownership.Owner{Key: types.NamespacedName{Name: "b"}, Since: early, Deleting: true}, ownership.Owner{Key: types.NamespacedName{Name: "a"}, Since: late}},
	} {
		if !tc.first.Before(tc.second) || tc.second.Before(tc.first) {
			t.Errorf("%s: %t and %t", name, tc.first.Before(tc.second), tc.second.Before(tc.first))
		}
	}
}
