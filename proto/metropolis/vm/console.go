package vmpb

// Metadata of OOBManagement.Console. Addition.
const (
	// MetadataReplay is the key that specifies whether a console begins with its last output. In a request, the
	// value ReplayNone means that it does not. If the key is absent or has another value, it does. In the header of
	// the response, the value is the number of bytes of the last output, which are sent first.
	MetadataReplay = "millwright-replay"
	// ReplayNone is the value of MetadataReplay for a console that begins with new output.
	ReplayNone = "none"
)
