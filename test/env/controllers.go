package env

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// RunControllers runs the controllers that setUp adds to a manager, in the test's namespace, until
// the test ends. The manager has the rights of the shipped control role, and the indexes that all
// controllers share.
func (c *Cluster) RunControllers(t testing.TB, setUp func(mgr ctrl.Manager, events record.EventRecorder) error) {
	t.Helper()
	access := c.UserWith(t, "config/rbac/control-role.yaml")
	mgr, err := ctrl.NewManager(access, ctrl.Options{
		Scheme:                 NewScheme(),
		Cache:                  cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}},
		Controller:             config.Controller{SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false)}, // a controller for each test
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := fieldindex.Add(t.Context(), mgr.GetFieldIndexer()); err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	events := record.NewBroadcaster()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: clients.CoreV1().Events("")})
	if err := setUp(mgr, events.NewRecorder(mgr.GetScheme(), corev1.EventSource{Component: userAgent})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // the test's own ends before its clean-up
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
		events.Shutdown()
	})
}

// Fresh prepares an object of a fixture for creation in the test's namespace: it clears the fields
// that an API server sets. It returns the same object.
func Fresh[T client.Object](e *Env, object T) T {
	object.SetNamespace(e.Namespace)
	object.SetUID("")
	object.SetCreationTimestamp(metav1.Time{})
	object.SetGeneration(0)
	return object
}
