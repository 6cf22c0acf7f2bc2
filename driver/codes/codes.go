// Package codes defines the error codes of drivers.
//
// A code determines what a machine controller does after a driver call: continue, retry soon, retry later, or
// replace the machine. Numbers and names up to Unauthenticated are those of gRPC, so a driver may return a gRPC
// code unchanged. Numbers are values of metric labels, and names appear in the status of machines, where
// autoscalers read them. Neither ever changes. The source is MCM's package of the same name.
package codes

// Code is the result of a driver call. The zero value is OK.
type Code uint32

const (
	// OK means that the call succeeded. An error never has this code.
	OK Code = 0
	// Canceled means that the caller canceled the call. The driver cleans up and returns. The controller retries
	// soon.
	Canceled Code = 1
	// Unknown means that the cause is unknown. An error without a code counts as Unknown. The controller retries
	// soon.
	Unknown Code = 2
	// InvalidArgument means that the machine name or the provider specification is invalid. The message names the
	// field. A user has to change the object, so the controller retries later.
	InvalidArgument Code = 3
	// DeadlineExceeded means that the call did not complete in time. It may or may not have had an effect. The
	// controller retries soon.
	DeadlineExceeded Code = 4
	// NotFound means that the provider has no such VM. It is the normal result of
	// GetMachineStatus before a creation and after a deletion.
	NotFound Code = 5
	// AlreadyExists means that a VM of that name exists with parameters that differ from the request. A machine
	// with another name has to be created.
	AlreadyExists Code = 6
	// PermissionDenied means that the credentials are valid but do not allow the operation. The controller retries
	// later.
	PermissionDenied Code = 7
	// ResourceExhausted means that a quota is exhausted or that the provider has no capacity. Autoscalers look for
	// this code and then use another node group.
	ResourceExhausted Code = 8
	// FailedPrecondition means that the state of the VM or of the provider does not
	// allow the operation. A user may have to repair it.
	FailedPrecondition Code = 9
	// Aborted means that another operation on the same machine is in progress. The controller retries soon.
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
	// Unavailable means that the provider cannot be reached at present. The controller retries soon.
	Unavailable Code = 14
	// DataLoss means that data was lost or damaged beyond repair.
	DataLoss Code = 15
	// Unauthenticated means that the credentials are missing or invalid.
	Unauthenticated Code = 16
	// Uninitialized means that the VM exists but is not initialized. The controller then calls InitializeMachine.
	// The response next to this error must not be nil.
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

// String returns the name of the code, for example "ResourceExhausted". It returns "Unknown" for a number that is
// not a code.
func (c Code) String() string {
	if int64(c) >= int64(len(names)) {
		return names[Unknown]
	}
	return names[c]
}

// StringToCode returns the code with the given name, or Unknown if there is none. Names are case-sensitive.
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
