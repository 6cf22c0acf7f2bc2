package codes_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/driver/codes"
)

// The numbers are metric labels and the names are stored in the status of machines, so this list must not change.
func TestCode_NumbersAndNamesAreStable(t *testing.T) {
	want := []string{
		"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound",
		"AlreadyExists", "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
		"Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss",
		"Unauthenticated", "Uninitialized",
	}
	var got []string
	for i, c := range codes.All() {
		if uint32(c) != uint32(i) {
			t.Errorf("code %s has number %d, want %d", c, c, i)
		}
		got = append(got, c.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if codes.Uninitialized != 17 || codes.Unauthenticated != 16 || codes.ResourceExhausted != 8 {
		t.Error("constants do not match their numbers")
	}
}

func TestStringToCode_InvertsString(t *testing.T) {
	for _, c := range codes.All() {
		if got := codes.StringToCode(c.String()); got != c {
			t.Errorf("StringToCode(%q) = %v, want %v", c.String(), got, c)
		}
	}
}

func TestCode_UnknownTextAndNumbers(t *testing.T) {
	for _, text := range []string{"", "notfound", "NOT_FOUND", "5", " NotFound"} {
		if got := codes.StringToCode(text); got != codes.Unknown {
			t.Errorf("StringToCode(%q) = %v, want Unknown", text, got)
		}
	}
	for _, c := range []codes.Code{18, 100, math.MaxUint32} {
		if got := c.String(); got != "Unknown" {
			t.Errorf("Code(%d).String() = %q, want Unknown", uint32(c), got)
		}
	}
}
