// Package qmp is a client of the QEMU Machine Protocol (QMP).
//
// QMP controls a running QEMU by JSON objects, one per line, over a
// stream. QEMU greets, the client enables its capabilities, and from then on
// commands and their responses are paired by id, with events in between. The
// protocol is described in QEMU's docs/interop/qmp-spec.
//
// The package knows the protocol but no command; what commands there are, and what
// they mean, is the caller's business.
package qmp
