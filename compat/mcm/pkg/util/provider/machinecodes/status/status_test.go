package status_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	ours "github.com/millwright-dev/millwright/driver/status"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
)

// TestStatus_TextIsThatOfMCM: the text of each code is MCM's, which other programs parse, regardless of how the status was created.
func TestStatus_TextIsThatOfMCM(t *testing.T) {
	for code := codes.OK; code <= codes.Uninitialized; code++ {
		want := fmt.Sprintf("machine codes error: code = [%s] message = [no [m5.large] left]", code)
		const message = "no [m5.large] left"
		made := map[string]error{"New": status.New(code, message), "WrapError": status.WrapError(code, message, io.EOF)}
		if code != codes.OK {
			made["Error"] = status.Error(code, message)
		}
		for name, err := range made {
			if err.Error() != want {
				t.Errorf("%s: got %q, want %q", name, err, want)
			}
		}
	}
	if err := status.Error(codes.OK, "fine"); err != nil {
		t.Errorf("OK is an error: %v", err)
	}
}

func TestWrapError(t *testing.T) {
	for _, code := range []codes.Code{codes.OK, codes.Unavailable} {
		s := status.WrapError(code, "no route", io.EOF)
		if s.Code() != code || s.Message() != "no route" {
			t.Errorf("%v: got %v %q", code, s.Code(), s.Message())
		}
	}
	if s := status.WrapError(codes.Unavailable, "no route", io.EOF); s.Cause() != io.EOF || !errors.Is(s, io.EOF) {
		t.Error("the status does not wrap the cause")
	}
	if s := status.WrapError(codes.Unavailable, "no route", nil); s.Cause() != nil {
		t.Errorf("got cause %v, want nil", s.Cause())
	}
}

// TestFromError: FromError finds what MCM finds in an error.
func TestFromError(t *testing.T) {
	full := status.New(codes.ResourceExhausted, "full")
	tests := map[string]struct {
		given   error
		code    codes.Code
		message string
		ok      bool
	}{
		"nil":                 {nil, codes.OK, "", true},
		"a status":            {full, codes.ResourceExhausted, "full", true},
		"wrapped":             {fmt.Errorf("creating: %w", full), codes.ResourceExhausted, "full", true},
		"its text":            {errors.New(full.Error()), codes.ResourceExhausted, "full", true},
		"two groups":          {errors.New("code [NotFound] message [no [such] VM]"), codes.NotFound, "no [such] VM", true},
		"one group":           {errors.New("no [such VM"), codes.Unknown, "no [such VM", false},
		"three groups":        {errors.New("[NotFound] [a] [b]"), codes.Unknown, "[NotFound] [a] [b]", false},
		"no group":            {io.EOF, codes.Unknown, "EOF", false},
		"unbalanced brackets": {errors.New("machine codes error: code = [Aborted] message = [a ] b]"), codes.Aborted, "a ] b", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, ok := status.FromError(test.given)
			if s.Code() != test.code || s.Message() != test.message || ok != test.ok {
				t.Errorf("got %v %q %t, want %v %q %t", s.Code(), s.Message(), ok, test.code, test.message, test.ok)
			}
		})
	}
}

// TestStatus_IsReadByControllers: Millwright's own package reads the code, even from a wrapped error.
func TestStatus_IsReadByControllers(t *testing.T) {
	for _, err := range []error{
		status.Error(codes.Uninitialized, "x"),
		status.WrapError(codes.Uninitialized, "x", io.EOF),
		fmt.Errorf("initializing: %w", status.Error(codes.Uninitialized, "x")),
	} {
		if got := ours.Code(err); got != codes.Uninitialized {
			t.Errorf("got code %[2]v for %[1]v", err, got)
		}
	}
}
