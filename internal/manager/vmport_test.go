package manager

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestEndpointSlice_IsRestoredAfterDeletion checks that the EndpointSlice is restored however soon after the write it is
// deleted.
func TestEndpointSlice_IsRestoredAfterDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "vms", UID: "1"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: portHypervisors, Port: 10270}}},
		}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}}
		deleted := 0
		c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(service).WithInterceptorFuncs(interceptor.Funcs{
			Apply: func(ctx context.Context, c client.WithWatch, config runtime.ApplyConfiguration, options ...client.ApplyOption) error {
				if err := c.Apply(ctx, config, options...); err != nil || deleted == 3 {
					return err
				}
				deleted++
				return c.Delete(ctx, slice.DeepCopy())
			},
			Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
				watcher, err := c.Watch(ctx, list, options...)
				if err == nil {
					context.AfterFunc(ctx, watcher.Stop) // like the real client
				}
				return watcher, err
			},
		}).Build()
		ports := &vmPorts{cfg: VMService{Name: service.Name}, namespace: service.Namespace, client: c, open: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go ports.lead(ctx, endpoint{netip.MustParseAddr("192.0.2.7"), map[string]int32{portHypervisors: 1}})
		time.Sleep(time.Minute)
		if err := c.Get(ctx, client.ObjectKeyFromObject(slice), slice); err != nil {
			t.Errorf("the slice is not restored after %d deletions: %v", deleted, err)
		}
	})
}
