package hooks

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// once reads each Secret once, for the life of one request: all VMs that it is about get the same.
type once struct {
	client.Reader

	mu    sync.Mutex
	reads map[client.ObjectKey]*read
}

// read is a Secret that is being read, or was.
type read struct {
	once   sync.Once
	secret corev1.Secret
	err    error
}

func readOnce(from client.Reader) *once {
	return &once{Reader: from, reads: map[client.ObjectKey]*read{}}
}

// Get implements client.Reader.
func (o *once) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	secret, is := object.(*corev1.Secret)
	if !is {
		return o.Reader.Get(ctx, key, object, options...)
	}
	r := o.of(key)
	r.once.Do(func() { r.err = o.Reader.Get(ctx, key, &r.secret, options...) })
	if r.err != nil {
		return r.err
	}
	r.secret.DeepCopyInto(secret)
	return nil
}

func (o *once) of(key client.ObjectKey) *read {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reads[key] == nil {
		o.reads[key] = &read{}
	}
	return o.reads[key]
}
