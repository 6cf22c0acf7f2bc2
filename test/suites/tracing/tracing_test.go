package tracing

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/tracing"
)

// collector receives spans, as an OpenTelemetry collector does.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracepb.Span
	names []string // service names
}

// Export implements collectorpb.TraceServiceServer.
func (c *collector) Export(_ context.Context, request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, attribute := range resource.Resource.Attributes {
			if attribute.Key == "service.name" {
				c.names = append(c.names, attribute.Value.GetStringValue())
			}
		}
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// span returns the only span with a name.
func (c *collector) span(t *testing.T, name string) *tracepb.Span {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*tracepb.Span
	var names []string
	for _, span := range c.spans {
		names = append(names, span.Name)
		if span.Name == name {
			found = append(found, span)
		}
	}
	if len(found) != 1 {
		t.Fatalf("got the spans %q, want one %q", names, name)
	}
	return found[0]
}

// serve starts a gRPC server on the loopback address, and returns its address.
func serve(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	register(server)
	go func() { _ = server.Serve(listener) }() // Stop stops it
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func machine() *v1alpha1.Machine {
	return &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pool-1"}}
}

// work reconciles a Machine, which calls a driver, which fails, and calls a gRPC server.
func work(t *testing.T) {
	t.Helper()
	d := fake.New(fake.Config{})
	d.FailWith(fake.CreateMachine, status.Error(codes.ResourceExhausted, "no capacity"))
	wrapped := instrument.Wrap(d, instrument.Options{Provider: "sim", Tracer: tracing.Tracer()})
	address := serve(t, func(server *grpc.Server) { healthpb.RegisterHealthServer(server, health.NewServer()) }, tracing.ServerOptions()...)
	connection, err := grpc.NewClient(address, append(tracing.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	reconciler := &edge.Reconciler[*v1alpha1.Machine]{
		Kind: &v1alpha1.Machine{},
		Pass: func(ctx context.Context, object *v1alpha1.Machine) (time.Duration, error) {
			_, err := wrapped.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: object, MachineClass: &v1alpha1.MachineClass{}})
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("the driver returned %v", err)
			}
			_, err = healthpb.NewHealthClient(connection).Check(ctx, &healthpb.HealthCheckRequest{})
			return 0, err
		},
	}
	if _, err := reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: machine().Namespace, Name: machine().Name}}); err != nil {
		t.Fatal(err)
	}
}

// TestTraces_ReachCollector checks the spans of a reconcile, a driver's call and gRPC, and that they are one trace.
func TestTraces_ReachCollector(t *testing.T) {
	c := &collector{}
	address := serve(t, func(server *grpc.Server) { collectorpb.RegisterTraceServiceServer(server, c) })
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+address)
	stop, err := tracing.Start(t.Context(), os.Getenv, "millwright-manager", "v1", logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	work(t)
	stop() // sends all spans

	reconcile, call := c.span(t, "reconcile Machine"), c.span(t, "driver create_machine")
	server := c.span(t, "Recv.grpc.health.v1.Health.Check")
	for _, span := range []*tracepb.Span{call, server} {
		if string(span.TraceId) != string(reconcile.TraceId) {
			t.Errorf("%s is not part of the trace of the reconcile", span.Name)
		}
	}
	if string(call.ParentSpanId) != string(reconcile.SpanId) || len(reconcile.ParentSpanId) > 0 {
		t.Error("the driver's call does not belong to the reconcile")
	}
	if call.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || !strings.Contains(call.Status.Message, "no capacity") {
		t.Errorf("the status of the driver's call is %v", call.Status)
	}
	want := map[string]string{"millwright.operation": "create_machine", "millwright.provider": "sim", "millwright.machine": "pool-1", "k8s.namespace.name": "shop", "millwright.code": "ResourceExhausted"}
	for _, attribute := range call.Attributes {
		if value, ok := want[attribute.Key]; ok && value == attribute.Value.GetStringValue() {
			delete(want, attribute.Key)
		}
	}
	if len(want) > 0 {
		t.Errorf("the driver's call lacks the attributes %v; it has %v", want, call.Attributes)
	}
	if !slices.Contains(c.names, "millwright-manager") {
		t.Errorf("the services are %q", c.names)
	}
	if tracing.Tracer() != nil || tracing.ServerOptions() != nil {
		t.Error("tracing is still on")
	}
}

// TestTraces_AreOffByDefault checks that nothing is traced, and that a reconcile allocates nothing for it.
func TestTraces_AreOffByDefault(t *testing.T) {
	for name, environment := range map[string]map[string]string{
		"no endpoint": {},
		"disabled":    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
	} {
		t.Run(name, func(t *testing.T) {
			stop, err := tracing.Start(t.Context(), func(name string) string { return environment[name] }, "millwright-manager", "v1", logr.Discard())
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			if tracing.Tracer() != nil || tracing.ServerOptions() != nil || tracing.DialOptions() != nil {
				t.Error("tracing is on")
			}
			work(t)
			object, ctx := machine(), t.Context()
			if allocations := testing.AllocsPerRun(100, func() {
				_, end := tracing.Reconcile(ctx, object, object.Namespace, object.Name)
				end(nil)
			}); allocations != 0 {
				t.Errorf("a reconcile allocates %v objects for traces", allocations)
			}
		})
	}
}

// TestTraces_RejectInvalidVariables checks the error of a variable that the exporter cannot use.
func TestTraces_RejectInvalidVariables(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "no value")
	stop, err := tracing.Start(t.Context(), os.Getenv, "millwright-manager", "v1", logr.Discard())
	if err == nil {
		stop()
		t.Fatal("the variable was accepted")
	}
	if !strings.Contains(err.Error(), "OTEL_RESOURCE_ATTRIBUTES") || tracing.Tracer() != nil {
		t.Error(err)
	}
}
