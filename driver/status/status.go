// Package status creates and reads errors of drivers.
//
// A [Status] is an error with a code of package codes, a message for users, and optionally the error that caused
// it. Its code can be read from an error that wraps it with %w, and from its text, for example after the text has
// crossed a process boundary:
//
//	machine codes error: code = [NotFound] message = [no such VM]
package status

import (
	"errors"
	"fmt"

	"github.com/millwright-dev/millwright/driver/codes"
)

// Status is an error with a code. Create it with [Error] or [WrapError]. A nil *Status means success: its code is
// OK and its texts are empty. A Status is immutable.
type Status struct {
	code    codes.Code
	message string
	cause   error
}

// New returns a Status. Unlike [Error], it also returns one for OK.
func New(code codes.Code, message string) *Status {
	return &Status{code: code, message: message}
}

// Error returns a Status as an error, or nil if code is OK.
func Error(code codes.Code, message string) error {
	return WrapError(code, message, nil)
}

// WrapError returns a Status that wraps cause, as an error, or nil if code is OK. The text of cause is not part of
// the message. cause may be nil.
func WrapError(code codes.Code, message string, cause error) error {
	if code == codes.OK {
		return nil
	}
	return &Status{code: code, message: message, cause: cause}
}

// FromError returns the Status of err, which is never nil, and whether err has one:
//
//   - If err is nil, it returns OK and true.
//   - If err is or wraps a Status (see errors.As), it returns that Status and true.
//   - If the text of err contains that of a Status, it returns a Status from that text with err as its cause, and
//     true.
//   - Otherwise, it returns Unknown with the text of err as its message and err as its cause, and false.
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

// errorText returns the text of err, which may be a nil *Status.
func errorText(err error) string {
	if s, ok := err.(*Status); ok && s == nil {
		return "nil status used as an error"
	}
	return err.Error()
}

// Code returns the code of err: OK for nil, and Unknown for an error without a code. An error with the code OK
// counts as Unknown, so that a failure is never treated as success.
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

// Is reports whether err has the given code.
func Is(err error, code codes.Code) bool {
	return Code(err) == code
}

// Code returns the code, or OK for a nil Status.
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

// Cause returns the wrapped error, or nil.
func (s *Status) Cause() error {
	if s == nil {
		return nil
	}
	return s.cause
}

// Error returns the text form. Other programs parse it, so it never changes.
func (s *Status) Error() string {
	return fmt.Sprintf("%s%s%s%s%s", prefix, s.Code(), middle, s.Message(), suffix)
}

// Unwrap returns the wrapped error, or nil.
func (s *Status) Unwrap() error {
	return s.Cause()
}

// Is reports whether target is a *Status with the same code, and with the same message or an empty one. errors.Is
// uses it.
func (s *Status) Is(target error) bool {
	t, ok := target.(*Status)
	if !ok {
		return false
	}
	return s.Code() == t.Code() && (t.Message() == "" || t.Message() == s.Message())
}
