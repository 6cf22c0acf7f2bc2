package instrument

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/millwright-dev/millwright/driver/status"
)

// begin starts the span of a call. It returns nil if there is no tracer.
func (d *Driver) begin(ctx context.Context, c call) (context.Context, trace.Span) {
	if d.options.Tracer == nil {
		return ctx, nil
	}
	attributes := []attribute.KeyValue{attribute.String("millwright.provider", d.options.Provider), attribute.String("millwright.operation", c.operation)}
	if c.machine != nil {
		attributes = append(attributes, attribute.String("k8s.namespace.name", c.machine.Namespace), attribute.String("millwright.machine", c.machine.Name))
	}
	if c.class != nil {
		attributes = append(attributes, attribute.String("millwright.class", c.class.Namespace+"/"+c.class.Name))
	}
	return d.options.Tracer.Start(ctx, "driver "+c.operation, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
}

// finish completes the span of a call with its code. The error does not contain values of the request's Secret.
func finish(span trace.Span, err error) {
	if span == nil {
		return
	}
	span.SetAttributes(attribute.String("millwright.code", status.Code(err).String()))
	if err != nil {
		span.SetStatus(otelcodes.Error, err.Error())
	}
	span.End()
}
