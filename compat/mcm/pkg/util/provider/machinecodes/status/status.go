// Package status creates and reads errors of drivers, at MCM's import path. A [Status] is that of Millwright's
// package driver/status, so the controllers can also read its code from an error that wraps it with %w.
package status

import (
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Status is an error with a code. Its text is:
//
//	machine codes error: code = [NotFound] message = [no such VM]
type Status = status.Status

// New returns a Status.
func New(c codes.Code, msg string) *Status { return status.New(c, msg) }

// Error returns a Status as an error, or nil if c is OK.
func Error(c codes.Code, msg string) error { return status.Error(c, msg) }

// WrapError returns a Status that wraps cause. The text of cause is not part of the message. It never returns nil.
func WrapError(c codes.Code, msg string, cause error) *Status {
	if c == codes.OK {
		return status.New(c, msg)
	}
	s, _ := status.FromError(status.WrapError(c, msg, cause))
	return s
}

// FromError returns the Status of err, which is never nil, and whether err has one: OK for nil, the Status that err
// is or wraps, a Status from the text of err, or otherwise Unknown with that text.
func FromError(err error) (*Status, bool) { return status.FromError(err) }
