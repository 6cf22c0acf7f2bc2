package drain

import "testing"

// TestNew_NegativeLimitsAreNone checks that negative values disable the limits. Zero stands for the default, so
// flags with the value zero are passed as negative numbers.
func TestNew_NegativeLimitsAreNone(t *testing.T) {
	none, defaults := New(Options{DetachTimeout: -1, ReattachTimeout: -1}), New(Options{})
	if none.DetachTimeout != 0 || none.ReattachTimeout != 0 {
		t.Errorf("negative limits become %s and %s", none.DetachTimeout, none.ReattachTimeout)
	}
	if defaults.DetachTimeout != DefaultDetachTimeout || defaults.ReattachTimeout != DefaultReattachTimeout {
		t.Errorf("limits of zero become %s and %s", defaults.DetachTimeout, defaults.ReattachTimeout)
	}
}
