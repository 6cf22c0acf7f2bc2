// Package codes changes when the set of machine error codes changes.
//
// The codes tell a machine controller what to do after a driver call: go on,
// try again soon, try again late, or replace the machine. Numbers and names up to
// Unauthenticated are those of gRPC, so a driver may pass a gRPC code through.
// The numbers are used as metric label values and the names are stored in the
// status of machines, where autoscalers read them; neither may ever change.
package codes

// Code is the kind of outcome of a driver call. The zero value is OK.
type Code uint32

const (
	// OK means that the call did what was asked. It is never part of an error.
	OK Code = 0
	// Canceled means that the caller gave up. The driver cleans up what it began
	// and returns. The controller tries again soon.
	Canceled Code = 1
	// Unknown means that nothing precise is known about what went wrong. Errors
	// that carry no code count as Unknown. The controller tries again soon.
	Unknown Code = 2
	// InvalidArgument means that the machine name or the provider specification is
	// wrong. The message names the field. Somebody has to change the object, so the
	// controller tries again slowly.
	InvalidArgument Code = 3
	// DeadlineExceeded means that the call did not end in time. Whether it had an
	// effect is not known. The controller tries again soon.
	DeadlineExceeded Code = 4
	// NotFound means that the provider has no such VM. It is the expected answer of
	// a status call before a creation and after a deletion.
	NotFound Code = 5
	// AlreadyExists means that a VM of that name exists, but with other parameters
	// than those asked for. A machine with another name has to be created.
	AlreadyExists Code = 6
	// PermissionDenied means that the credentials are valid but do not allow the
	// operation. The controller tries again slowly.
	PermissionDenied Code = 7
	// ResourceExhausted means that a quota is used up or that the provider has no
	// capacity left. Autoscalers look for this code and turn to another pool.
	ResourceExhausted Code = 8
	// FailedPrecondition means that the VM is in a state that does not allow the
	// operation, and that somebody may have to repair it.
	FailedPrecondition Code = 9
	// Aborted means that another operation on the same machine is under way. The
	// controller waits for it and tries again soon.
	Aborted Code = 10
	// OutOfRange means, from a creation, that a size in the provider specification
	// is outside its valid range; from a status call, that several VMs exist for the
	// machine, which makes the controller look for orphans.
	OutOfRange Code = 11
	// Unimplemented means that the driver does not support the operation. For
	// optional operations it is a normal answer and the controller does without.
	Unimplemented Code = 12
	// Internal means that something that must not happen has happened.
	Internal Code = 13
	// Unavailable means that the provider does not answer at present. The
	// controller tries again soon.
	Unavailable Code = 14
	// DataLoss means that data was lost or damaged beyond repair.
	DataLoss Code = 15
	// Unauthenticated means that the credentials are missing or not valid.
	Unauthenticated Code = 16
	// Uninitialized means that the VM exists but steps that follow its creation are
	// outstanding. The controller then calls InitializeMachine. It comes with a
	// response that is not nil.
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

// String returns the name of the code, for example "ResourceExhausted". A number
// that is not a code of this package reads as "Unknown", so that the text always
// names a code.
func (c Code) String() string {
	if int64(c) >= int64(len(names)) {
		return names[Unknown]
	}
	return names[c]
}

// StringToCode returns the code of that name, and Unknown for any other text.
// Upper and lower case differ: "notfound" is not a name.
func StringToCode(name string) Code {
	if c, ok := byName[name]; ok {
		return c
	}
	return Unknown
}

// All returns every code in the order of the numbers. The slice is the caller's.
func All() []Code {
	all := make([]Code, len(names))
	for i := range names {
		all[i] = Code(i)
	}
	return all
}
