// Package storage is what the storage of a virtual machine must be able to do to refuse the hypervisors that ran
// it before.
//
// A lease ends what a hypervisor does by the hypervisor's own doing. What it has sent before, and what it sends when all of
// its processes were stopped and go on later, only the storage can refuse.
package storage

import (
	"context"
	"errors"
)

var (
	// ErrRevoked means that a token was revoked, which is for ever.
	ErrRevoked = errors.New("the fencing token is revoked")
	// ErrOtherHolder means that another Pod has the token.
	ErrOtherHolder = errors.New("another pod has this fencing token")
	// ErrNotOpen means that the disks are not open to a Pod with a token. They may be some day.
	ErrNotOpen = errors.New("the disks are not open with this fencing token")
	// ErrNoDisk means that the storage does not have a disk. It may have it some day.
	ErrNoDisk = errors.New("the server does not have this disk")
	// ErrNoToken means that a token is 0.
	ErrNoToken = errors.New("a fencing token is above zero")
)

// Token is a fencing token: the number of a holder of a virtual machine's lease, which is higher than those of all holders
// before. 0 is none.
type Token uint64

// Attachment is where a hypervisor attaches disks.
type Attachment struct {
	// Address is host and port of the server.
	Address string
	// Pod is that of the server, which is its identity.
	Pod string
}

// Volume is the storage of one virtual machine, with all its disks. It is safe for concurrent use. Several controllers may
// use it, of which only one is right: what is revoked stays so.
type Volume interface {
	// Open lets the hypervisor in a Pod attach the disks with a token, until that is revoked. The same may be opened
	// repeatedly. It ends nobody else's use: Revoke does. Errors: ErrRevoked, ErrOtherHolder, ErrNoToken, or that
	// the storage cannot be reached.
	Open(ctx context.Context, token Token, pod string) (Attachment, error)
	// Revoke returns nil when nothing that was attached with that token, or a lower one, can change the disks any more, and
	// nothing will be attached with one. It may be repeated. After an error nothing is known, and nobody else may
	// use the disks until it has succeeded.
	Revoke(ctx context.Context, upTo Token) error
}
