package hooks

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// secretCache reads each Secret once during a request, so that all VMs of the request use the same data.
type secretCache struct {
	client.Reader

	mu      sync.Mutex
	secrets map[client.ObjectKey]*cachedSecret
}

// cachedSecret is a Secret that was read or is being read.
type cachedSecret struct {
	once   sync.Once
	secret corev1.Secret
	err    error
}

func newSecretCache(from client.Reader) *secretCache {
	return &secretCache{Reader: from, secrets: map[client.ObjectKey]*cachedSecret{}}
}

// Get implements client.Reader.
func (c *secretCache) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	secret, is := object.(*corev1.Secret)
	if !is {
		return c.Reader.Get(ctx, key, object, options...)
	}
	r := c.of(key)
	r.once.Do(func() { r.err = c.Reader.Get(ctx, key, &r.secret, options...) })
	if r.err != nil {
		return r.err
	}
	r.secret.DeepCopyInto(secret)
	return nil
}

func (c *secretCache) of(key client.ObjectKey) *cachedSecret {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.secrets[key] == nil {
		c.secrets[key] = &cachedSecret{}
	}
	return c.secrets[key]
}
