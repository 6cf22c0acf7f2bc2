package relist

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// closing returns the address of a server that closes each connection, like a load balancer without API servers.
func closing(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}()
	return listener.Addr().String()
}

// refusing returns an address where no server listens.
func refusing(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(nil)
	defer server.Close()
	return server.Listener.Addr().String()
}

type watcher func(context.Context, metav1.ListOptions) (watch.Interface, error)

// watchers returns a watch function for each kind of client that the informers of controller-runtime use.
func watchers(t *testing.T, config *rest.Config) map[string]watcher {
	t.Helper()
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	return map[string]watcher{
		"JSON":         kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().Watch,
		"protobuf":     kubernetes.NewForConfigOrDie(protobuf).CoreV1().Nodes().Watch,
		"unstructured": dynamic.NewForConfigOrDie(config).Resource(nodes).Watch,
		"metadata":     metadata.NewForConfigOrDie(config).Resource(nodes).Watch,
	}
}

// TestConfig_WatchWithoutServer checks that a watch that cannot connect expires, with each client. Without Config, client-go
// retries the watch.
func TestConfig_WatchWithoutServer(t *testing.T) {
	t.Parallel()
	for fault, address := range map[string]func(*testing.T) string{"refuses": refusing, "closes": closing} {
		for name, watch := range watchers(t, Config(&rest.Config{Host: "http://" + address(t)})) {
			t.Run(fault+"/"+name, func(t *testing.T) {
				t.Parallel()
				if _, err := watch(t.Context(), metav1.ListOptions{ResourceVersion: "7"}); !apierrors.IsResourceExpired(err) {
					t.Errorf("a watch from a version returned %v", err)
				}
			})
		}
	}
}

// TestConfig_OtherRequests checks that only watches from a version expire. If other requests expired, an informer would repeat
// them unchanged and without a pause.
func TestConfig_OtherRequests(t *testing.T) {
	t.Parallel()
	nodes := kubernetes.NewForConfigOrDie(Config(&rest.Config{Host: "http://" + refusing(t)})).CoreV1().Nodes()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, request := range map[string]func() error{
		"list": func() error {
			_, err := nodes.List(t.Context(), metav1.ListOptions{ResourceVersion: "7"})
			return err
		},
		"watch from any version": func() error {
			_, err := nodes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
			return err
		},
		"watch from the latest version": func() error {
			_, err := nodes.Watch(t.Context(), metav1.ListOptions{})
			return err
		},
		"streamed list": func() error {
			_, err := nodes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "7", SendInitialEvents: ptr.To(true)})
			return err
		},
		"canceled watch": func() error {
			_, err := nodes.Watch(canceled, metav1.ListOptions{ResourceVersion: "7"})
			return err
		},
	} {
		if err := request(); err == nil || apierrors.IsResourceExpired(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConfig_PassesResponses checks that responses are not changed.
func TestConfig_PassesResponses(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer server.Close()
	nodes := kubernetes.NewForConfigOrDie(Config(&rest.Config{Host: server.URL})).CoreV1().Nodes()
	if _, err := nodes.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "7"}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want the response of the server", err)
	}
	if Config(nil) != nil {
		t.Error("Config(nil) is not nil")
	}
}
