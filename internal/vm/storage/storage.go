// Package storage defines what the storage of a virtual machine must support to exclude hypervisors that ran the
// VM earlier.
//
// A lease relies on the hypervisor to stop its guest. Only the storage can reject writes that a hypervisor sent
// earlier, or that it sends after all of its processes were paused and later resumed.
package storage

import (
	"context"
	"errors"
)

var (
	// ErrRevoked means that a token was revoked, which is permanent.
	ErrRevoked = errors.New("the fencing token is revoked")
	// ErrOtherHolder means that the token belongs to another Pod.
	ErrOtherHolder = errors.New("the fencing token belongs to another pod")
	// ErrNotOpen means that the disks are not open to this Pod with this token. They may be opened later.
	ErrNotOpen = errors.New("the disks are not open with this fencing token")
	// ErrNoDisk means that the storage does not have a disk. The disk may be added later.
	ErrNoDisk = errors.New("the server does not have this disk")
	// ErrNoToken means that a token is 0.
	ErrNoToken = errors.New("the fencing token must be greater than zero")
)

// Token is a fencing token: the number of a holder of a virtual machine's lease. It is higher than the tokens of
// all earlier holders. The zero value means that there is no token.
type Token uint64

// Attachment is where a hypervisor attaches disks.
type Attachment struct {
	// Address is the host and port of the server.
	Address string
	// Pod is the server's Pod, which is its identity.
	Pod string
}

// Volume is the storage of one virtual machine with all its disks. It is safe for concurrent use. Several
// controllers may use it, although only one is authoritative: a revocation is permanent.
type Volume interface {
	// Open lets the hypervisor in a Pod attach the disks with a token, until the token is revoked. The same token may
	// be opened repeatedly. Open does not revoke other tokens; see Revoke. Errors: ErrRevoked, ErrOtherHolder,
	// ErrNoToken, or a failure to reach the storage.
	Open(ctx context.Context, token Token, pod string) (Attachment, error)
	// Revoke returns nil once nothing that was attached with that token or a lower one can change the disks, and
	// nothing can be attached with such a token again. Revoke may be called repeatedly. After an error the result
	// is unknown, and no one else may use the disks until Revoke has succeeded.
	Revoke(ctx context.Context, upTo Token) error
}
