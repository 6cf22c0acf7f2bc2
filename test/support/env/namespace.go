package env

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cleanupTimeout limits the last requests of a test.
const cleanupTimeout = 3 * time.Minute

func (c *Cluster) createNamespace(t testing.TB, v variant, own bool) error {
	ctx := context.Background() // also used by cleanups, when the test's context is canceled
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: namespacePrefix(t.Name())}}
	if err := c.Client.Create(ctx, namespace); err != nil {
		return err
	}
	c.Namespace = namespace.Name
	if !own {
		t.Cleanup(func() {
			if err := c.deleteNamespace(ctx, namespace, v); err != nil {
				t.Errorf("deleting namespace %s: %v", namespace.Name, err)
			}
		})
	}
	if v.controllerManager {
		return c.awaitServiceAccount(ctx)
	}
	return c.Client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: c.Namespace}})
}

// deleteNamespace deletes the namespace of a finished test, including objects with finalizers, since the
// controllers that would remove these have stopped. With a namespace controller, a namespace that cannot be
// finalized is retried every eight seconds with over 200 requests. A dozen of them would keep all workers of the
// namespace controller and the API server busy.
func (c *Cluster) deleteNamespace(ctx context.Context, namespace *corev1.Namespace, v variant) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if err := c.Client.Delete(ctx, namespace); err != nil || !v.controllerManager {
		return client.IgnoreNotFound(err)
	}
	kinds, err := c.finalizedKinds()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, kind := range kinds {
		group.Go(func() error {
			if err := c.deleteAll(ctx, kind); err != nil {
				return fmt.Errorf("deleting what is left of kind %s: %w", kind.Kind, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// finalizedKinds are the kinds whose objects may have finalizers of controllers that have stopped: custom
// resources and Secrets.
func (c *Cluster) finalizedKinds() ([]schema.GroupVersionKind, error) {
	client, err := discovery.NewDiscoveryClientForConfig(c.Admin)
	if err != nil {
		return nil, err
	}
	lists, err := discovery.ServerPreferredNamespacedResources(client)
	if err != nil {
		return nil, err
	}
	kinds := []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Secret")}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"deletecollection", "list", "patch"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		if !strings.Contains(gv.Group, ".") || strings.HasSuffix(gv.Group, ".k8s.io") {
			continue
		}
		for _, resource := range list.APIResources {
			kinds = append(kinds, gv.WithKind(resource.Kind))
		}
	}
	return kinds, nil
}

// deleteAll deletes the objects of a kind despite their finalizers. No new objects can be created, since the
// namespace is being deleted.
func (c *Cluster) deleteAll(ctx context.Context, kind schema.GroupVersionKind) error {
	left := &metav1.PartialObjectMetadataList{}
	left.SetGroupVersionKind(kind)
	if err := c.Client.List(ctx, left, client.InNamespace(c.Namespace)); err != nil || len(left.Items) == 0 {
		return err
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	if err := c.Client.DeleteAllOf(ctx, object, client.InNamespace(c.Namespace)); err != nil {
		return err
	}
	var errs []error
	for i := range left.Items {
		none := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		errs = append(errs, client.IgnoreNotFound(c.Client.Patch(ctx, &left.Items[i], none)))
	}
	return errors.Join(errs...)
}

// awaitServiceAccount waits until the controller manager has created the namespace's default service account,
// which shows that it is running.
func (c *Cluster) awaitServiceAccount(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, WaitTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: "default"}, &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("waiting for the default service account of %s: %w", c.Namespace, err)
	}
	return nil
}

// namespacePrefix converts a test's name to a valid namespace prefix, which is short because nodes are named after
// namespace and machine and have at most 63 characters.
func namespacePrefix(test string) string {
	const longest = 32
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(test))
	return strings.Trim(name[:min(len(name), longest)], "-") + "-"
}
