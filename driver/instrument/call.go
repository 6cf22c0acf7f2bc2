package instrument

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/internal/redact"
	"github.com/millwright-dev/millwright/driver/status"
)

// call describes a call. Pointers may be nil.
type call struct {
	operation string
	machine   *v1alpha1.Machine
	class     *v1alpha1.MachineClass
	secret    *corev1.Secret
}

// invoke calls a method of the inner driver.
func invoke[Request, Response any](ctx context.Context, d *Driver, c call, req *Request, method func(context.Context, *Request) (*Response, error)) (*Response, error) {
	log := logr.FromContextOrDiscard(ctx).WithValues(c.logValues()...)
	ctx, cancel := context.WithTimeout(ctx, d.options.Timeout)
	defer cancel()
	ctx, span := d.begin(ctx, c)

	begin := d.options.Clock.Now()
	resp, stack, err := guarded(func() (*Response, error) { return method(ctx, req) })
	duration := d.options.Clock.Since(begin)

	if err = checked(ctx, c.operation, resp == nil, err); err != nil {
		secrets := redactor(c.secret, err, stack)
		err = secrets.Error(err)
		stack = secrets.Text(stack)
	}
	d.metrics.observe(c, duration, err)
	finish(span, err)
	c.log(log, outcome{duration: duration, stack: stack, err: err})
	return resp, err
}

// redactor returns a redactor for the texts of a failed call.
func redactor(secret *corev1.Secret, err error, stack string) *redact.Redactor {
	longest := max(1, len(stack))
	for _, text := range redact.Texts(err) {
		longest = max(longest, len(text))
	}
	return redact.New(longest, secret)
}

// guarded calls f. It turns a panic into an error and returns the stack.
func guarded[Response any](f func() (*Response, error)) (resp *Response, stack string, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			resp, stack = nil, string(debug.Stack())
			inner, _ := cause.(error)
			err = status.WrapError(codes.Internal, fmt.Sprintf("the driver panicked: %v", cause), inner)
		}
	}()
	resp, err = f()
	return resp, "", err
}

// checked returns an error if the result violates the contract, and err otherwise.
func checked(ctx context.Context, operation string, noResponse bool, err error) error {
	if err == nil {
		if noResponse {
			return status.Error(codes.Internal, "the driver returned neither a response nor an error")
		}
		return nil
	}
	s, hasCode := status.FromError(err)
	switch {
	case !hasCode:
		return ended(ctx, err)
	case s.Code() == codes.OK:
		return status.WrapError(codes.Internal, "the driver returned an error with the code OK: "+s.Message(), err)
	case s.Code() == codes.Uninitialized && operation == opStatus && noResponse:
		return status.WrapError(codes.Internal, "the driver returned Uninitialized without a response: "+s.Message(), err)
	}
	return err
}

// ended returns err with a code, if it was caused by the call's context.
func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return status.WrapError(codes.DeadlineExceeded, err.Error(), err)
	case errors.Is(err, context.Canceled):
		return status.WrapError(codes.Canceled, err.Error(), err)
	default:
		return err
	}
}

// outcome is the outcome of a call.
type outcome struct {
	duration time.Duration
	stack    string
	err      error
}

// log logs a call: at level 1 if it succeeded or returned an expected code, as an error if the code indicates a
// defect, and as information otherwise.
func (c call) log(log logr.Logger, o outcome) {
	code := status.Code(o.err)
	values := []any{"duration", o.duration, "code", code.String()}
	if o.stack != "" {
		values = append(values, "stack", o.stack)
	}
	switch {
	case o.err == nil:
		log.V(1).Info("Driver call succeeded", values...)
	case c.expects(code):
		log.V(1).Info("Driver call returned", append(values, "error", o.err.Error())...)
	case code == codes.Internal || code == codes.DataLoss:
		log.Error(o.err, "Driver call failed", values...)
	default:
		log.Info("Driver call failed", append(values, "error", o.err.Error())...)
	}
}

// expects reports whether a code is a normal result of the operation.
func (c call) expects(code codes.Code) bool {
	switch code {
	case codes.Unimplemented:
		return c.operation != opCreate && c.operation != opDelete
	case codes.NotFound:
		return c.operation == opStatus || c.operation == opDelete
	case codes.Uninitialized:
		return c.operation == opStatus
	default:
		return false
	}
}

func (c call) logValues() []any {
	values := []any{"operation", c.operation}
	if c.machine != nil {
		values = append(values, "machine", c.machine.Namespace+"/"+c.machine.Name)
	}
	if c.class != nil {
		values = append(values, "class", c.class.Namespace+"/"+c.class.Name)
	}
	return values
}
