// Package codes defines the error codes of drivers.
//
// A code decides what a machine controller does after a driver call: continue, try again
// soon, try again later, or replace the machine. Numbers and names up to Unauthenticated
// are those of gRPC, so a driver may return a gRPC code unchanged. The numbers are values
// of metric labels, and the names are in the status of machines, where autoscalers read
// them. Neither ever changes. The source is MCM's package of the same name.
package codes

// Code is the result of a driver call. The zero value is OK.
type Code uint32

const (
	// OK means that the call succeeded. It is never the code of an error.
	OK Code = 0
	// Canceled means that the caller canceled the call. The driver cleans up and
	// returns. The controller tries again soon.
	Canceled Code = 1
	// Unknown means that the cause is not known. Errors without a code count as
	// Unknown. The controller tries again soon.
	Unknown Code = 2
	// InvalidArgument means that the machine name or the provider specification is
	// wrong. The message names the field. A user has to change the object, so the
	// controller tries again later.
	InvalidArgument Code = 3
	// DeadlineExceeded means that the call did not end in time. Whether it had an
	// effect is not known. The controller tries again soon.
	DeadlineExceeded Code = 4
	// NotFound means that the provider has no such VM. It is the normal result of
	// GetMachineStatus before a creation and after a deletion.
	NotFound Code = 5
	// AlreadyExists means that a VM of that name exists with other parameters than
	// those of the request. A machine with another name has to be created.
	AlreadyExists Code = 6
	// PermissionDenied means that the credentials are valid but do not allow the
	// operation. The controller tries again later.
	PermissionDenied Code = 7
	// ResourceExhausted means that a quota is used up or that the provider has no
	// capacity. Autoscalers look for this code and use another pool.
	ResourceExhausted Code = 8
	// FailedPrecondition means that the state of the VM or of the provider does not
	// allow the operation. A user may have to repair it.
	FailedPrecondition Code = 9
	// Aborted means that another operation on the same machine has not ended. The
	// controller tries again soon.
	Aborted Code = 10
	// OutOfRange means, from CreateMachine, that a size in the provider specification
	// is outside its valid range; from GetMachineStatus, that several VMs exist for
	// the machine. The controller then looks for orphans.
	OutOfRange Code = 11
	// Unimplemented means that the driver does not support the operation. It is a
	// normal result of optional operations.
	Unimplemented Code = 12
	// Internal means that an invariant of the driver or the provider is broken.
	Internal Code = 13
	// Unavailable means that the provider cannot be reached at present. The
	// controller tries again soon.
	Unavailable Code = 14
	// DataLoss means that data was lost or damaged beyond repair.
	DataLoss Code = 15
	// Unauthenticated means that the credentials are missing or not valid.
	Unauthenticated Code = 16
	// Uninitialized means that the VM exists, but is not initialized. The controller
	// then calls InitializeMachine. The response next to it must not be nil.
	Uninitialized Code = 17
)

// names is indexed by the code's number.
var names = [...]string{
	OK:                 "OK",
	Canceled:           "Canceled",
	Unknown:            "Unknown",
	InvalidArgument:    "InvalidArgument",
	DeadlineExceeded:   "DeadlineExceeded",
	NotFound:           "NotFound",
	AlreadyExists:      "AlreadyExists",
	PermissionDenied:   "PermissionDenied",
	ResourceExhausted:  "ResourceExhausted",
	FailedPrecondition: "FailedPrecondition",
	Aborted:            "Aborted",
	OutOfRange:         "OutOfRange",
	Unimplemented:      "Unimplemented",
	Internal:           "Internal",
	Unavailable:        "Unavailable",
	DataLoss:           "DataLoss",
	Unauthenticated:    "Unauthenticated",
	Uninitialized:      "Uninitialized",
}

// byName is the inverse of names.
var byName = func() map[string]Code {
	m := make(map[string]Code, len(names))
	for number, name := range names {
		m[name] = Code(number)
	}
	return m
}()

// String returns the name of the code, for example "ResourceExhausted". For a number
// that is not a code it returns "Unknown".
func (c Code) String() string {
	if int64(c) >= int64(len(names)) {
		return names[Unknown]
	}
	return names[c]
}

// StringToCode returns the code with that name, and Unknown for any other text. Names are
// case-sensitive.
func StringToCode(name string) Code {
	if c, ok := byName[name]; ok {
		return c
	}
	return Unknown
}

// All returns a new slice of all codes, sorted by number.
func All() []Code {
	all := make([]Code, len(names))
	for i := range names {
		all[i] = Code(i)
	}
	return all
}
