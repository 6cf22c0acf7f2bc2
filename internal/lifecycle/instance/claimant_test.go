package instance_test

import (
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestClaimants: of two that name one instance, exactly one is before the other, whoever asks.
func TestClaimants(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	for name, tc := range map[string]struct{ first, second instance.Claimant }{
		"certain":             {instance.Claimant{Name: "b", Certain: true, Since: late}, instance.Claimant{Name: "a", Since: early}},
		"there first":         {instance.Claimant{Name: "b", Since: early}, instance.Claimant{Name: "a", Since: late}},
		"certain, both":       {instance.Claimant{Name: "b", Certain: true, Since: early}, instance.Claimant{Name: "a", Certain: true, Since: late}},
		"by name, if by none": {instance.Claimant{Name: "a", Since: early}, instance.Claimant{Name: "b", Since: early}},
		"deletion is no loss": {instance.Claimant{Name: "b", Since: early, Deleting: true}, instance.Claimant{Name: "a", Since: late}},
	} {
		if !tc.first.Before(tc.second) || tc.second.Before(tc.first) {
			t.Errorf("%s: %t and %t", name, tc.first.Before(tc.second), tc.second.Before(tc.first))
		}
	}
}
