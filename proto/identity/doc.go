// Package identitypb is the protocol by which hypervisors get their certificates. It is
// generated from identity.proto.
package identitypb
