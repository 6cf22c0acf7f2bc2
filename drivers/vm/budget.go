package vm

import (
	"context"
	"errors"
	"sync"
)

const (
	// maxDecoded limits the memory that responses of all concurrent calls to untrusted API servers take when they are
	// decoded, in bytes. The largest response takes about 10 MiB.
	maxDecoded = 128 << 20
	// freeDecoded is the memory that a call can always use, so that servers with large responses do not prevent calls
	// to others. A VirtualMachine takes about 100 KiB.
	freeDecoded = 256 << 10
	// valueSize is the memory that a decoded value takes at most in addition to its text, in bytes, on average over the
	// values of a large response.
	valueSize = 256
)

// errBudget means that the responses of concurrent calls take too much memory.
var errBudget = errors.New("the responses of concurrent calls to API servers take too much memory")

// budget is the memory that all calls share.
type budget struct {
	mu   sync.Mutex
	left int
}

// take takes a part of the budget. It returns false if less is left.
func (b *budget) take(bytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if bytes > b.left {
		return false
	}
	b.left -= bytes
	return true
}

func (b *budget) give(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += bytes
}

// accountKey is the key of the account in the context of a call.
type accountKey struct{}

// account is what one call of the driver has taken from the budget: enough for its largest response. A call keeps only
// the last object that it has received.
type account struct {
	budget *budget

	mu     sync.Mutex
	taken  int
	closed bool
}

// begin returns the context of a call, and a function that gives back what the call has taken.
func (b *budget) begin(ctx context.Context) (context.Context, func()) {
	a := &account{budget: b}
	return context.WithValue(ctx, accountKey{}, a), a.close
}

// charge takes what a response of this size needs in addition to earlier ones. It returns errBudget if less is left, or
// if the call has returned.
func (a *account) charge(bytes, values int) error {
	more := bytes + valueSize*values - freeDecoded
	a.mu.Lock()
	defer a.mu.Unlock()
	if more <= a.taken {
		return nil
	}
	if a.closed || !a.budget.take(more-a.taken) {
		return errBudget
	}
	a.taken = more
	return nil
}

func (a *account) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.budget.give(a.taken)
	a.taken, a.closed = 0, true
}
