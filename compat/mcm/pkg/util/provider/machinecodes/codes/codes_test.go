package codes_test

import (
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
)

// TestCodes_AreThoseOfMCM: numbers and names are those of MCM, and there are no other codes.
func TestCodes_AreThoseOfMCM(t *testing.T) {
	all := []struct {
		code codes.Code
		name string
	}{
		{codes.OK, "OK"},
		{codes.Canceled, "Canceled"},
		{codes.Unknown, "Unknown"},
		{codes.InvalidArgument, "InvalidArgument"},
		{codes.DeadlineExceeded, "DeadlineExceeded"},
		{codes.NotFound, "NotFound"},
		{codes.AlreadyExists, "AlreadyExists"},
		{codes.PermissionDenied, "PermissionDenied"},
		{codes.ResourceExhausted, "ResourceExhausted"},
		{codes.FailedPrecondition, "FailedPrecondition"},
		{codes.Aborted, "Aborted"},
		{codes.OutOfRange, "OutOfRange"},
		{codes.Unimplemented, "Unimplemented"},
		{codes.Internal, "Internal"},
		{codes.Unavailable, "Unavailable"},
		{codes.DataLoss, "DataLoss"},
		{codes.Unauthenticated, "Unauthenticated"},
		{codes.Uninitialized, "Uninitialized"},
	}
	for number, test := range all {
		t.Run(test.name, func(t *testing.T) {
			if int(test.code) != number {
				t.Errorf("got number %d, want %d", test.code, number)
			}
			if got := test.code.String(); got != test.name {
				t.Errorf("got name %s", got)
			}
			if got := codes.StringToCode(test.name); got != test.code {
				t.Errorf("StringToCode returned %v", got)
			}
		})
	}
	for _, text := range []string{"", "ok", "notFound", "18", "Weird"} {
		if got := codes.StringToCode(text); got != codes.Unknown {
			t.Errorf("StringToCode(%q) = %v, want Unknown", text, got)
		}
	}
}
