// Package identitypb is the protocol that hypervisors use to get their certificates. It is generated from
// identity.proto, which documents all messages and methods.
package identitypb
