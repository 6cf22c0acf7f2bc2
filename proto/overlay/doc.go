// Package overlaypb is the protocol by which hypervisors learn where the guests of other hypervisors are. It is
// generated from overlay.proto, which documents all messages and methods.
package overlaypb
