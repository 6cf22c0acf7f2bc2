package target

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patching is a client that refuses to update Nodes and Pods. The cache contains only parts of them, so an update with an
// object from the cache would delete the rest. Patches contain only what was changed.
type patching struct{ client.Client }

// Update implements client.Client.
func (p patching) Update(ctx context.Context, object client.Object, opts ...client.UpdateOption) error {
	if err := updatable(object); err != nil {
		return err
	}
	return p.Client.Update(ctx, object, opts...)
}

// Status implements client.Client.
func (p patching) Status() client.SubResourceWriter { return p.SubResource("status") }

// SubResource implements client.Client.
func (p patching) SubResource(name string) client.SubResourceClient {
	return patchingSubResource{p.Client.SubResource(name)}
}

type patchingSubResource struct{ client.SubResourceClient }

// Update implements client.SubResourceWriter.
func (p patchingSubResource) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := updatable(object); err != nil {
		return err
	}
	return p.SubResourceClient.Update(ctx, object, opts...)
}

// updatable returns an error if the object may come from the cache without some of its fields.
func updatable(object client.Object) error {
	switch object.(type) {
	case *corev1.Node, *corev1.Pod:
		return fmt.Errorf("updating %T %s: the cache contains only a part of it; patch it instead", object, object.GetName())
	default:
		return nil
	}
}
