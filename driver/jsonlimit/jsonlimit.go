// Package jsonlimit limits the memory that JSON of an untrusted sender takes when it is decoded.
//
// A limit of the length is not enough: the two bytes of an empty object can become an element of a list that takes a
// thousand times as much. A [Reader] therefore also counts values and the depth of nesting, before a decoder reads them.
// Use it for the responses of API servers that an author of a Secret chose.
package jsonlimit

import (
	"fmt"
	"io"
)

// Limits are the limits of a document, which must be a JSON object.
type Limits struct {
	// Bytes is the maximum length, including white space in front of the document. Required.
	Bytes int
	// Values is the maximum number of values in the document and in its objects and arrays. Empty objects and arrays
	// can count twice. Required.
	Values int
	// Depth is the maximum depth of nested objects and arrays. Required.
	Depth int
	// Items is the maximum number of elements in all arrays directly below the document together. A list of the
	// Kubernetes API has its objects there. If it is zero, only Values limits them.
	Items int
}

const notObject = "the document is not a JSON object"

// Error reports which limit a document exceeds, or that it is not a JSON object.
type Error struct{ problem string }

// Error implements error.
func (e *Error) Error() string { return e.problem }

// Reader reads JSON up to the limits. Create one with Limits.Document or Limits.Stream. It does not check the syntax,
// which is left to decoders.
type Reader struct {
	limits Limits
	from   io.Reader
	stream bool
	err    error

	bytes, values, items, depth int
	// longest and most are the bytes and values of the largest complete document of a stream.
	longest, most int
	// isList is whether the current container directly below the document is an array.
	isList          bool
	quoted, escaped bool
}

// Document returns a reader for a single document. White space can follow it.
func (l Limits) Document(from io.Reader) *Reader { return &Reader{limits: l, from: from} }

// Stream returns a reader for documents that follow one another, like the events of a watch. The limits apply to each
// of them.
func (l Limits) Stream(from io.Reader) *Reader { return &Reader{limits: l, from: from, stream: true} }

// Values returns the number of values that have been read of the current document.
func (r *Reader) Values() int { return r.values }

// Largest returns the number of bytes and the number of values of the longest document, and of the one with the most
// values, that have been read so far. The current document counts as far as it has been read.
func (r *Reader) Largest() (bytes, values int) { return max(r.longest, r.bytes), max(r.most, r.values) }

// Read implements io.Reader. It returns an *Error instead of the byte that exceeds a limit, and at each later call.
func (r *Reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.from.Read(p)
	for i, c := range p[:n] {
		if problem := r.scan(c); problem != "" {
			r.err = &Error{problem}
			return i, r.err
		}
	}
	return n, err
}

// scan returns what is wrong with the next byte, or an empty string.
func (r *Reader) scan(c byte) string {
	if r.bytes++; r.bytes > r.limits.Bytes {
		return fmt.Sprintf("the document is longer than %d bytes", r.limits.Bytes)
	}
	switch {
	case r.escaped:
		r.escaped = false
	case r.quoted:
		r.escaped, r.quoted = c == '\\', c != '"'
	case c == '"':
		r.quoted = true
	case c == '{' || c == '[':
		return r.open(c)
	case c == '}' || c == ']':
		return r.close()
	case c == ',':
		return r.value()
	}
	if r.depth == 0 && c != ' ' && c != '\t' && c != '\r' && c != '\n' {
		return notObject
	}
	return ""
}

// open enters an object or an array.
func (r *Reader) open(c byte) string {
	switch {
	case r.depth == 0 && c != '{':
		return notObject
	case r.depth == r.limits.Depth:
		return fmt.Sprintf("the document is nested deeper than %d levels", r.limits.Depth)
	}
	if r.depth++; r.depth == 2 {
		r.isList = c == '['
	}
	return r.value()
}

// close leaves an object or an array.
func (r *Reader) close() string {
	if r.depth == 0 {
		return notObject
	}
	if r.depth--; r.depth == 0 && r.stream {
		r.longest, r.most = max(r.longest, r.bytes), max(r.most, r.values)
		r.bytes, r.values, r.items = 0, 0, 0
	}
	return ""
}

// value counts the value that a comma or a bracket announces.
func (r *Reader) value() string {
	if r.values++; r.values > r.limits.Values {
		return fmt.Sprintf("the document has more than %d values", r.limits.Values)
	}
	if r.depth == 2 && r.isList {
		r.items++
	}
	if r.limits.Items > 0 && r.items > r.limits.Items {
		return fmt.Sprintf("the document has more than %d items", r.limits.Items)
	}
	return ""
}
