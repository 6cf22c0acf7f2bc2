// Package status changes when the way in which errors carry a machine code changes.
//
// A [Status] is an error with a code of package codes, a message for people, and
// optionally the error that caused it. It keeps its code through wrapping with %w
// and through a round trip as text, which matters where errors cross a process
// boundary or were flattened by a driver:
//
//	machine codes error: code = [NotFound] message = [no such VM]
package status

import (
	"errors"
	"fmt"

	"github.com/millwright-dev/millwright/driver/codes"
)

// Status is an error with a machine code. Make it with [New] or [WrapError]. A nil
// *Status stands for success: its code is OK and its texts are empty. It is
// immutable and may be shared.
type Status struct {
	code    codes.Code
	message string
	cause   error
}

// New returns a Status with that code and message.
func New(code codes.Code, message string) *Status {
	return &Status{code: code, message: message}
}

// Error returns New(code, message) as an error, and nil if code is OK.
func Error(code codes.Code, message string) error {
	return WrapError(code, message, nil)
}

// WrapError returns a Status with that code and message as an error that unwraps to
// cause, and nil if code is OK. The text of cause is not added to the message. A
// nil cause is allowed.
func WrapError(code codes.Code, message string, cause error) error {
	if code == codes.OK {
		return nil
	}
	return &Status{code: code, message: message, cause: cause}
}

// FromError finds the Status that err carries, and reports whether it carries one:
//
//   - nil yields OK, true;
//   - a Status that err is or wraps (as errors.As finds it) yields that Status, true;
//   - an error whose text holds the text form of a Status yields a Status made from
//     that text, with err as its cause, true;
//   - anything else yields Unknown with err's text as its message and err as its
//     cause, false.
//
// The result is never nil.
func FromError(err error) (*Status, bool) {
	if err == nil {
		return New(codes.OK, ""), true
	}
	var s *Status
	if errors.As(err, &s) && s != nil {
		return s, true
	}
	text := errorText(err)
	if code, message, ok := parse(text); ok {
		return &Status{code: code, message: message, cause: err}, true
	}
	return &Status{code: codes.Unknown, message: text, cause: err}, false
}

// errorText tolerates a nil *Status inside an error, a usual slip.
func errorText(err error) string {
	if s, ok := err.(*Status); ok && s == nil {
		return "nil status used as an error"
	}
	return err.Error()
}

// Code returns the code that err carries: OK for nil, and Unknown for an error that
// carries none. An error that claims to be OK counts as Unknown, so that nobody
// takes a failure for a success.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	s, _ := FromError(err)
	if s.code == codes.OK {
		return codes.Unknown
	}
	return s.code
}

// Is reports whether Code(err) is code.
func Is(err error, code codes.Code) bool {
	return Code(err) == code
}

// Code returns the code, OK for a nil Status.
func (s *Status) Code() codes.Code {
	if s == nil {
		return codes.OK
	}
	return s.code
}

// Message returns the message without the code.
func (s *Status) Message() string {
	if s == nil {
		return ""
	}
	return s.message
}

// Cause returns the error that was given to WrapError, or nil.
func (s *Status) Cause() error {
	if s == nil {
		return nil
	}
	return s.cause
}

// Error returns the text form. Other programs parse it; it is frozen.
func (s *Status) Error() string {
	return fmt.Sprintf("%s%s%s%s%s", prefix, s.Code(), middle, s.Message(), suffix)
}

// Unwrap returns the cause, so that errors.Is and errors.As see it.
func (s *Status) Unwrap() error {
	return s.Cause()
}

// Is makes errors.Is match by code: target matches if it is a *Status of the same
// code whose message is empty or equal.
func (s *Status) Is(target error) bool {
	t, ok := target.(*Status)
	if !ok {
		return false
	}
	return s.Code() == t.Code() && (t.Message() == "" || t.Message() == s.Message())
}
