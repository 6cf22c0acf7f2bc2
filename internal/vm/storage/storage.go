// Package storage defines what the storage of a virtual machine must support to exclude hypervisors that ran it
// earlier.
//
// A lease relies on the hypervisor to stop its guest. Only the storage can reject what a hypervisor has sent before,
// or sends after all of its processes were stopped and continue later.
package storage

import (
	"context"
	"errors"
)

var (
	// ErrRevoked means that a token was revoked, which is permanent.
	ErrRevoked = errors.New("the fencing token is revoked")
	// ErrOtherHolder means that another Pod has the token.
	ErrOtherHolder = errors.New("another pod has this fencing token")
	// ErrNotOpen means that the disks are not open to a Pod with a token. They may be opened later.
	ErrNotOpen = errors.New("the disks are not open with this fencing token")
	// ErrNoDisk means that the storage does not have a disk. It may have it later.
	ErrNoDisk = errors.New("the server does not have this disk")
	// ErrNoToken means that a token is 0.
	ErrNoToken = errors.New("the fencing token must be above zero")
)

// Token is a fencing token: the number of a holder of a virtual machine's lease. It is higher than the tokens of all
// earlier holders. 0 means none.
type Token uint64

// Attachment is where a hypervisor attaches disks.
type Attachment struct {
	// Address is the host and port of the server.
	Address string
	// Pod is the server's Pod, which is its identity.
	Pod string
}

// Volume is the storage of one virtual machine, with all its disks. It is safe for concurrent use. Several
// controllers may use it, although only one is authoritative: a revocation is permanent.
type Volume interface {
	// Open lets the hypervisor in a Pod attach the disks with a token, until the token is revoked. The same token may
	// be opened repeatedly. Open does not revoke other tokens; see Revoke. Errors: ErrRevoked, ErrOtherHolder,
	// ErrNoToken, or a failure to reach the storage.
	Open(ctx context.Context, token Token, pod string) (Attachment, error)
	// Revoke returns nil when nothing that was attached with that token, or a lower one, can change the disks any
	// more, and nothing will be attached with one. It may be repeated. After an error the result is unknown, and no
	// one else may use the disks until Revoke has succeeded.
	Revoke(ctx context.Context, upTo Token) error
}
