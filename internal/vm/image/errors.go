package image

import (
	"errors"
	"fmt"
	"syscall"
)

// Kind is what an error means for whoever wanted the file. It is an error itself, for
// use with errors.Is.
type Kind string

const (
	// Invalid means that the Source makes no sense. Nothing was tried.
	Invalid Kind = "Invalid"
	// Unavailable means that the content cannot be had now; later it may.
	Unavailable Kind = "Unavailable"
	// Rejected means that there is content, but that it cannot be used: its checksum,
	// its format, its size.
	Rejected Kind = "Rejected"
	// NoSpace means that the storage has no room for the file.
	NoSpace Kind = "NoSpace"
)

// Error implements error.
func (k Kind) Error() string { return string(k) }

// Error is why a file was not written. It is its Kind, and its cause, to errors.Is.
type Error struct {
	// Kind is what the error means.
	Kind Kind
	// Subject is what was wanted: "image" or "file", and the URL without anything that
	// may be secret.
	Subject string
	// Problem is what was wrong, for people.
	Problem string
	// Cause is the error behind it; nil if there is none.
	Cause error

	// passing is set if another attempt may succeed at once.
	passing bool
	// lost is set if that attempt must be from the start.
	lost bool
}

// Error implements error.
func (e *Error) Error() string { return e.Subject + ": " + e.Problem }

// Unwrap returns the Kind and the Cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// noRoom are the ways in which the kernel says that a file cannot grow.
var noRoom = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}

// storage explains an error of a write to the file.
func (j *job) storage(err error) error {
	for _, reason := range noRoom {
		if errors.Is(err, reason) {
			return &Error{Kind: NoSpace, Subject: j.subject, Problem: "no space: " + err.Error(), Cause: err}
		}
	}
	return fmt.Errorf("%s: %w", j.subject, err)
}

func (j *job) rejected(format string, arguments ...any) error {
	return &Error{Kind: Rejected, Subject: j.subject, Problem: fmt.Sprintf(format, arguments...)}
}

func (j *job) unavailable(format string, arguments ...any) *Error {
	return &Error{Kind: Unavailable, Subject: j.subject, Problem: fmt.Sprintf(format, arguments...)}
}

// passing is Unavailable for the moment.
func (j *job) passing(cause error, format string, arguments ...any) *Error {
	e := j.unavailable(format, arguments...)
	e.Cause, e.passing = cause, true
	return e
}

func isPassing(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.passing
}

func isLost(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.lost
}
