package vmpb

// Metadata of OOBManagement.Console. Addition.
const (
	// MetadataReplay in a request is whether a console begins with its last output: ReplayNone is not.
	// Absent, or anything else: it does. In the answer's header it is the number of bytes that the last
	// output has, which come first.
	MetadataReplay = "millwright-replay"
	// ReplayNone has a console begin with what is said from now on.
	ReplayNone = "none"
)
