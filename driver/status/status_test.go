package status_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

func TestStatus_TextFormIsStable(t *testing.T) {
	const want = "machine codes error: code = [ResourceExhausted] message = [no m5.large left]"
	for name, err := range map[string]error{
		"new":   status.New(codes.ResourceExhausted, "no m5.large left"),
		"error": status.Error(codes.ResourceExhausted, "no m5.large left"),
		"wrap":  status.WrapError(codes.ResourceExhausted, "no m5.large left", io.EOF),
	} {
		if got := err.Error(); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestStatus_OKIsNotAnError(t *testing.T) {
	if err := status.Error(codes.OK, "fine"); err != nil {
		t.Errorf("Error(OK) = %v, want nil", err)
	}
	if err := status.WrapError(codes.OK, "fine", io.EOF); err != nil {
		t.Errorf("WrapError(OK) = %v, want nil", err)
	}
	var none *status.Status
	if none.Code() != codes.OK || none.Message() != "" || none.Cause() != nil || none.Unwrap() != nil {
		t.Error("a nil Status is not an empty OK")
	}
}

func TestFromError(t *testing.T) {
	var none *status.Status
	notFound := status.New(codes.NotFound, "gone")
	tests := map[string]struct {
		given   error
		code    codes.Code
		message string
		carries bool
	}{
		"nil":            {nil, codes.OK, "", true},
		"itself":         {notFound, codes.NotFound, "gone", true},
		"wrapped":        {fmt.Errorf("deleting [vm]: %w", notFound), codes.NotFound, "gone", true},
		"wrapped twice":  {fmt.Errorf("a: %w", fmt.Errorf("b: %w", notFound)), codes.NotFound, "gone", true},
		"joined":         {errors.Join(io.EOF, notFound), codes.NotFound, "gone", true},
		"outermost wins": {status.WrapError(codes.Internal, "outer", notFound), codes.Internal, "outer", true},
		"text":           {errors.New(notFound.Error()), codes.NotFound, "gone", true},
		"empty message":  {errors.New("machine codes error: code = [Aborted] message = []"), codes.Aborted, "", true},
		"text, unbalanced message": {
			errors.New("machine codes error: code = [Aborted] message = [a ] b [[ c]"), codes.Aborted, "a ] b [[ c", true},
		"text, quoting another": {
			errors.New("machine codes error: code = [Internal] message = [x: " + notFound.Error() + "]"),
			codes.Internal, "x: " + notFound.Error(), true},
		"embedded text": {
			errors.New("cannot [really] create: machine codes error: code = [Aborted] message = [a [b] c] (attempt [3])"),
			codes.Aborted, "a [b] c", true},
		"embedded text, bracket at the end": {
			errors.New("rpc: machine codes error: code = [Aborted] message = [a] in attempt [3]"), codes.Aborted, "a", true},
		"embedded text, unbalanced message": {
			errors.New("rpc: machine codes error: code = [Aborted] message = [a [b c]"), codes.Aborted, "a [b c", true},
		"unknown name":        {errors.New("machine codes error: code = [Weird] message = [x]"), codes.Unknown, "x", true},
		"other writer":        {errors.New("provider error [Unavailable], text [try [later]]"), codes.Unavailable, "try [later]", true},
		"two groups, no code": {errors.New("no [such] thing [here]"), codes.Unknown, "no [such] thing [here]", false},
		"two groups, OK":      {errors.New("[OK] [x]"), codes.Unknown, "[OK] [x]", false},
		"three groups":        {errors.New("[NotFound] [x] [y]"), codes.Unknown, "[NotFound] [x] [y]", false},
		"cut off":             {errors.New("machine codes error: code = [NotFound] mess"), codes.Unknown, "machine codes error: code = [NotFound] mess", false},
		"cut off in message":  {errors.New("machine codes error: code = [NotFound] message = [go"), codes.Unknown, "machine codes error: code = [NotFound] message = [go", false},
		"plain":               {io.EOF, codes.Unknown, "EOF", false},
		"deadline":            {fmt.Errorf("x: %w", context.DeadlineExceeded), codes.Unknown, "x: context deadline exceeded", false},
		"typed nil":           {none, codes.Unknown, "nil status used as an error", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, carries := status.FromError(tt.given)
			if got == nil {
				t.Fatal("FromError returned nil")
			}
			if got.Code() != tt.code || got.Message() != tt.message || carries != tt.carries {
				t.Errorf("got %v %q %v, want %v %q %v", got.Code(), got.Message(), carries, tt.code, tt.message, tt.carries)
			}
			if c := status.Code(tt.given); c != tt.code {
				t.Errorf("Code = %v, want %v", c, tt.code)
			}
		})
	}
}

func TestStatus_FailureIsNeverOK(t *testing.T) {
	for name, err := range map[string]error{
		"status": status.New(codes.OK, "contradiction"),
		"text":   errors.New(status.New(codes.OK, "contradiction").Error()),
	} {
		if got := status.Code(err); got == codes.OK {
			t.Errorf("%s: a non-nil error has code OK", name)
		}
		if status.Is(err, codes.OK) {
			t.Errorf("%s: a non-nil error is OK", name)
		}
	}
	if !status.Is(nil, codes.OK) {
		t.Error("nil is not OK")
	}
}

func TestStatus_ErrorsIsMatchesCodes(t *testing.T) {
	err := fmt.Errorf("creating: %w", status.WrapError(codes.Unavailable, "no route", io.ErrUnexpectedEOF))
	tests := map[string]struct {
		target error
		want   bool
	}{
		"code":                     {status.New(codes.Unavailable, ""), true},
		"code and message":         {status.New(codes.Unavailable, "no route"), true},
		"code and another message": {status.New(codes.Unavailable, "other"), false},
		"another code":             {status.New(codes.Aborted, ""), false},
		"cause":                    {io.ErrUnexpectedEOF, true},
		"not the cause":            {io.EOF, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := errors.Is(err, tt.target); got != tt.want {
				t.Errorf("errors.Is = %v, want %v", got, tt.want)
			}
		})
	}
	var s *status.Status
	if !errors.As(err, &s) || s.Cause() != io.ErrUnexpectedEOF {
		t.Error("errors.As does not find the Status with its cause")
	}
	if !status.Is(err, codes.Unavailable) || status.Is(err, codes.Aborted) {
		t.Error("status.Is does not match by code")
	}
}

// FuzzFromError_RoundTrip: the text form keeps any message.
func FuzzFromError_RoundTrip(f *testing.F) {
	for _, message := range []string{"", "a", "]", "[", "][", "] message = [", "machine codes error: code = [NotFound] message = [x]", "\xff\n[[]"} {
		f.Add(uint32(5), message)
	}
	f.Fuzz(func(t *testing.T, number uint32, message string) {
		code := codes.Code(number % uint32(len(codes.All())))
		got, ok := status.FromError(errors.New(status.New(code, message).Error()))
		if !ok || got.Code() != code || got.Message() != message {
			t.Errorf("%v %q became %v %q %v", code, message, got.Code(), got.Message(), ok)
		}
		if wrapped := fmt.Errorf("doing: %s", status.New(codes.Aborted, message)); !status.Is(wrapped, codes.Aborted) {
			t.Errorf("embedded form of %q has code %v", message, status.Code(wrapped))
		}
	})
}

// FuzzFromError_AnyText: no text causes a panic, and a text that is not recognized becomes the message unchanged.
func FuzzFromError_AnyText(f *testing.F) {
	for _, text := range []string{"", "[", "]", "[a][b]", "[Aborted] [b]", "machine codes error: code = [", "machine codes error: code = [] message = []"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := status.FromError(errors.New(text))
		if got == nil {
			t.Fatal("FromError returned nil")
		}
		if !ok && (got.Code() != codes.Unknown || got.Message() != text) {
			t.Errorf("%q was not recognized, but became %v %q", text, got.Code(), got.Message())
		}
		if status.Code(errors.New(text)) == codes.OK {
			t.Errorf("%q became OK", text)
		}
	})
}
