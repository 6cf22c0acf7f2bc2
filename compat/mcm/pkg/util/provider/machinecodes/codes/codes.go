// Package codes contains the error codes of drivers, at MCM's import path. They are those of Millwright's package
// driver/codes, which documents the meaning of each code.
package codes

import "github.com/millwright-dev/millwright/driver/codes"

// Code is the result of a driver call. The zero value is OK.
type Code = codes.Code

// The codes. Their numbers and names never change.
const (
	OK                 = codes.OK
	Canceled           = codes.Canceled
	Unknown            = codes.Unknown
	InvalidArgument    = codes.InvalidArgument
	DeadlineExceeded   = codes.DeadlineExceeded
	NotFound           = codes.NotFound
	AlreadyExists      = codes.AlreadyExists
	PermissionDenied   = codes.PermissionDenied
	ResourceExhausted  = codes.ResourceExhausted
	FailedPrecondition = codes.FailedPrecondition
	Aborted            = codes.Aborted
	OutOfRange         = codes.OutOfRange
	Unimplemented      = codes.Unimplemented
	Internal           = codes.Internal
	Unavailable        = codes.Unavailable
	DataLoss           = codes.DataLoss
	Unauthenticated    = codes.Unauthenticated
	Uninitialized      = codes.Uninitialized
)

// StringToCode returns the code with the given name, or Unknown if there is none.
func StringToCode(name string) Code { return codes.StringToCode(name) }
