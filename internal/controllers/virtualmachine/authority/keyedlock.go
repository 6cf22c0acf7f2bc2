package authority

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// keyedLocks allow the hypervisors of each VM only one concurrent call to the API server with a client. Other calls wait
// here and not in the queue of the client, where they would delay the calls of all VMs. Leases must be renewed in time even if
// a hypervisor floods the controller with requests. The zero value is ready to use.
type keyedLocks struct {
	mu   sync.Mutex
	held map[types.NamespacedName]*keyedLock
}

// keyedLock is the lock of one VM. A value in held means that it is locked.
type keyedLock struct {
	held  chan struct{}
	users int // the holder and those that wait
}

// acquire waits for the lock of a VM. It returns the context's error if the context is canceled first.
func (k *keyedLocks) acquire(ctx context.Context, vm types.NamespacedName) (release func(), err error) {
	lock := k.ref(vm)
	select {
	case lock.held <- struct{}{}:
		return func() {
			<-lock.held
			k.unref(vm)
		}, nil
	case <-ctx.Done():
		k.unref(vm)
		return nil, ctx.Err()
	}
}

func (k *keyedLocks) ref(vm types.NamespacedName) *keyedLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == nil {
		k.held = map[types.NamespacedName]*keyedLock{}
	}
	if k.held[vm] == nil {
		k.held[vm] = &keyedLock{held: make(chan struct{}, 1)}
	}
	k.held[vm].users++
	return k.held[vm]
}

func (k *keyedLocks) unref(vm types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[vm].users--; k.held[vm].users == 0 {
		delete(k.held, vm)
	}
}
