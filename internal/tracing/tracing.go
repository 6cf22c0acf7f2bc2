// Package tracing sends spans of reconciles, calls of drivers and gRPC to an OpenTelemetry collector.
//
// It is off until Start is called. While it is off, it creates no spans and no gRPC options, and a reconcile costs one
// atomic load.
package tracing

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	experimental "google.golang.org/grpc/experimental/opentelemetry"
	"google.golang.org/grpc/stats/opentelemetry"
)

// name is the name of the instrumentation.
const name = "github.com/millwright-dev/millwright"

// flushTimeout limits how long the end of the program waits for a collector.
const flushTimeout = 5 * time.Second

// active is nil while tracing is off.
var active atomic.Pointer[sdktrace.TracerProvider]

// Start sends spans to the collector that OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT names, with
// OTLP over gRPC, unless OTEL_SDK_DISABLED is true. Without such a variable, it does nothing. The other standard variables
// OTEL_* configure certificates, headers and sampling. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence
// over the service and its version. The collector need not be reachable: spans are dropped until it is, and the log reports
// that. The returned function sends the remaining spans, and turns tracing off. Start returns an error if a variable is
// invalid.
//
// Call Start before servers, connections and drivers are created, since those only have spans if tracing is on.
func Start(ctx context.Context, getenv func(string) string, service, version string, log logr.Logger) (stop func(), err error) {
	endpoint := cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || getenv("OTEL_SDK_DISABLED") == "true" {
		return func() {}, nil
	}
	attributes, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("cannot describe the program in traces: %w; check OTEL_RESOURCE_ATTRIBUTES", err)
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot send traces: %w; check the variables OTEL_EXPORTER_OTLP_*", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(attributes))
	active.Store(provider)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Info("Cannot send traces", "error", err.Error()) }))
	return func() {
		active.Store(nil)
		// The context of the program is done.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Info("Cannot send the last traces", "error", err.Error())
		}
	}, nil
}

// Tracer returns the tracer, or nil while tracing is off.
func Tracer() trace.Tracer {
	if provider := active.Load(); provider != nil {
		return provider.Tracer(name)
	}
	return nil
}

// Reconcile starts the span of a reconcile of an object, which may be empty. The returned function completes it with the error of
// the reconcile.
func Reconcile(ctx context.Context, object any, namespace, name string) (context.Context, func(error)) {
	tracer := Tracer()
	if tracer == nil {
		return ctx, nothing
	}
	kind := reflect.TypeOf(object).Elem().Name()
	ctx, span := tracer.Start(ctx, "reconcile "+kind, trace.WithAttributes(
		attribute.String("k8s.namespace.name", namespace), attribute.String("millwright.kind", kind), attribute.String("millwright.name", name)))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

func nothing(error) {}

// ServerOptions returns the options with which a gRPC server has spans of its calls, and continues the traces of its
// clients. It returns nil while tracing is off.
func ServerOptions() []grpc.ServerOption {
	options, on := grpcOptions()
	if !on {
		return nil
	}
	return []grpc.ServerOption{opentelemetry.ServerOption(options)}
}

// DialOptions returns the options with which a gRPC connection has spans of its calls, and passes them to the server. It
// returns nil while tracing is off.
func DialOptions() []grpc.DialOption {
	options, on := grpcOptions()
	if !on {
		return nil
	}
	return []grpc.DialOption{opentelemetry.DialOption(options)}
}

func grpcOptions() (opentelemetry.Options, bool) {
	provider := active.Load()
	if provider == nil {
		return opentelemetry.Options{}, false
	}
	return opentelemetry.Options{TraceOptions: experimental.TraceOptions{TracerProvider: provider, TextMapPropagator: propagation.TraceContext{}}}, true
}
