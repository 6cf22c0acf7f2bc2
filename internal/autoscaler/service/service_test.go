package service

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/autoscaler"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/flood"
)

// late is a cache that shows a change of a deployment only after some reads.
type late struct {
	client.Reader
	before *v1alpha1.MachineDeployment
	reads  int
}

func (l *late) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if l.reads--; l.reads >= 0 {
		l.before.DeepCopyInto(object.(*v1alpha1.MachineDeployment))
		return nil
	}
	return l.Reader.Get(ctx, key, object, opts...)
}

// group returns a service with a deployment of at most five Machines. Each of the errors makes one patch of the
// deployment fail. A successful patch creates a new generation, as on an API server.
func group(t *testing.T, failures ...error) (*Service, *late) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	deployment := fixture.MachineDeployment()
	deployment.Generation, deployment.Spec.Replicas = 1, 1
	deployment.Annotations = map[string]string{autoscaler.AnnotationMaxSize: "5"}
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(deployment).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if len(failures) > 0 {
				err := failures[0]
				failures = failures[1:]
				return err
			}
			object.SetGeneration(object.GetGeneration() + 1)
			return c.Patch(ctx, object, patch, opts...)
		},
	}).Build()
	cache := &late{Reader: live, before: deployment.DeepCopy()}
	return &Service{Namespace: deployment.Namespace, Cache: cache, Live: live}, cache
}

// TestService_ReturnsNewSizeDespiteStaleCache checks that the size after a change is the new one although the cache is
// behind.
func TestService_ReturnsNewSizeDespiteStaleCache(t *testing.T) {
	s, cache := group(t)
	cache.reads = 3
	id := cache.before.Name
	if _, err := s.NodeGroupIncreaseSize(t.Context(), &autoscalerpb.NodeGroupIncreaseSizeRequest{Id: id, Delta: 2}); err != nil {
		t.Fatal(err)
	}
	size, err := s.NodeGroupTargetSize(t.Context(), &autoscalerpb.NodeGroupTargetSizeRequest{Id: id})
	if err != nil || size.GetTargetSize() != 3 {
		t.Errorf("the size is %d, want 3: %v", size.GetTargetSize(), err)
	}
}

// TestService_MapsFailuresToCodes checks that a change is retried after a conflict, and that other failures have the
// matching code.
func TestService_MapsFailuresToCodes(t *testing.T) {
	denied := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: `admission webhook "freeze.example.com" denied the request: the cluster is frozen`,
	}}
	deployments := schema.GroupResource{Group: v1alpha1.SchemeGroupVersion.Group, Resource: "machinedeployments"}
	for name, s := range map[string]struct {
		id      string
		delta   int32
		failure []error
		want    codes.Code
	}{
		"one conflict":                    {"", 1, []error{apierrors.NewConflict(deployments, "pool", nil)}, codes.OK},
		"repeated conflicts":              {"", 1, slices.Repeat([]error{apierrors.NewConflict(deployments, "pool", nil)}, tries), codes.Aborted},
		"a webhook denies it":             {"", 1, []error{denied}, codes.FailedPrecondition},
		"forbidden":                       {"", 1, []error{apierrors.NewForbidden(deployments, "pool", nil)}, codes.PermissionDenied},
		"the API server does not respond": {"", 1, []error{context.DeadlineExceeded}, codes.DeadlineExceeded},
		"the API server is busy":          {"", 1, []error{apierrors.NewTooManyRequests("busy", 1)}, codes.Unavailable},
		"above the maximum":               {"", 5, nil, codes.FailedPrecondition},
		"unknown group":                   {"other", 1, nil, codes.NotFound},
	} {
		service, cache := group(t, s.failure...)
		if s.id == "" {
			s.id = cache.before.Name
		}
		_, err := service.NodeGroupIncreaseSize(t.Context(), &autoscalerpb.NodeGroupIncreaseSizeRequest{Id: s.id, Delta: s.delta})
		if status.Code(err) != s.want {
			t.Errorf("%s: %v, want %v", name, err, s.want)
		}
	}
}

// TestService_IdleClientsDoNotBlockPort checks that clients that connect and send nothing do not block the port for the autoscaler.
func TestService_IdleClientsDoNotBlockPort(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service, _ := group(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	runner := &Runner{Config: Config{Listener: listener, Credentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13})}}
	go func() { ended <- runner.serve(ctx, service) }()
	flood.Past(t, listener.Addr().String(), maxAnonymous)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestService_LimitsRequests checks that a short request with many empty nodes is rejected before it is decoded.
func TestService_LimitsRequests(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service, _ := group(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	runner := &Runner{Config: Config{Listener: listener, Credentials: insecure.NewCredentials()}}
	go func() { ended <- runner.serve(ctx, service) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	nodes := &autoscalerpb.NodeGroupDeleteNodesRequest{Nodes: slices.Repeat([]*autoscalerpb.ExternalGrpcNode{{}}, maxFields)}
	for want, id := range map[codes.Code]string{codes.NotFound: "", codes.Internal: "one field more"} {
		nodes.Id = id
		if _, err := autoscalerpb.NewCloudProviderClient(conn).NodeGroupDeleteNodes(t.Context(), nodes); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", id, err, want)
		}
	}
	_ = conn.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
