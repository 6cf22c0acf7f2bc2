// Package identitypb is the protocol by which a process of the virtual machine system
// gets its certificate. It changes when identity.proto does.
package identitypb
