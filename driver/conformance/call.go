package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance/internal/observe"
	"github.com/millwright-dev/millwright/driver/status"
)

// record describes a call that has returned, or that the check stopped waiting for.
type record struct {
	method string
	err    error
	// empty is true if the call returned neither a response nor an error.
	empty bool
	// changed is the name of the field that the driver changed in the request.
	changed string
	// logged is what the driver logged.
	logged []string
	// hung is true if the call did not return after its context was done.
	hung bool
}

const (
	// grace is how long a call may run after its context is done. It only limits the wait for a driver that hangs.
	grace = 30 * time.Second
	// labelKey is the profiler label of a driver's goroutines.
	labelKey = "conformance"
)

// do calls a method of the driver with a deadline and a logger, and records the call.
func do[Q, R any](p *probe, ctx context.Context, method string, call func(context.Context, *Q) (*R, error), req *Q) (*R, error) {
	ctx, cancel := context.WithTimeout(ctx, p.suite.options.Timeout)
	defer cancel()
	made := &record{method: method}
	log := &observe.Log{}
	ctx = logr.NewContext(ctx, log.Logger())
	before := observe.CopyOf(req)
	type outcome struct {
		resp *R
		err  error
	}
	returned := make(chan outcome, 1)
	go pprof.Do(ctx, pprof.Labels(labelKey, p.label()), func(ctx context.Context) {
		var a outcome
		defer func() { returned <- a }()
		defer func() {
			if what := recover(); what != nil {
				a.err = status.Error(codes.Internal, fmt.Sprintf("the driver panicked: %v\n%s", what, debug.Stack()))
			}
		}()
		a.resp, a.err = call(observe.DriverContext(ctx), req)
	})
	var a outcome
	select {
	case a = <-returned:
	case <-ctx.Done():
		select {
		case a = <-returned:
		case <-time.After(grace):
			made.hung = true
			a.err = status.Error(codes.DeadlineExceeded, method+" did not return after its context was done")
		}
	}
	if !made.hung {
		made.changed = observe.Difference(before, req)
	}
	made.err, made.empty, made.logged = a.err, a.resp == nil && a.err == nil, log.Take()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, *made)
	return a.resp, a.err
}

// label returns a profiler label that is unique to the rule.
func (p *probe) label() string { return p.suite.name + "-" + p.rule.ID() }

func is(err error, want ...codes.Code) bool { return slices.Contains(want, status.Code(err)) }

// exists reports whether an error of GetMachineStatus means that the VM exists.
func exists(err error) bool { return is(err, codes.OK, codes.Uninitialized) }

// refused reports whether an error of CreateMachine means that the call created no VM.
func refused(err error) bool {
	return is(err, codes.InvalidArgument, codes.OutOfRange, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.ResourceExhausted, codes.FailedPrecondition, codes.Unimplemented)
}

// poll calls a function at increasing intervals until it returns true. It returns false if the timeout expires
// first.
func (p *probe) poll(ctx context.Context, yes func(context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, p.suite.options.Timeout)
	defer cancel()
	for pause := time.Millisecond; !yes(ctx); pause = min(2*pause, 2*time.Second) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

var errStillExists = errors.New("it still exists")

// isPermanent reports whether a retry would return the same error.
func isPermanent(err error) bool {
	return is(err, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated)
}

// gone waits until the VM of a machine no longer exists, as the controllers do.
func (p *probe) waitUntilGone(ctx context.Context, t target) error {
	last := errStillExists
	if p.poll(ctx, func(ctx context.Context) bool {
		_, err := do(p, ctx, "GetMachineStatus", p.provider.Driver.GetMachineStatus, &driver.GetMachineStatusRequest{
			Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(),
		})
		if last = err; exists(err) {
			last = errStillExists
		}
		return is(err, codes.NotFound, codes.Unimplemented) || isPermanent(err)
	}) && !isPermanent(last) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.suite.existing, t.key())
		return nil
	}
	return last
}

// destroy deletes the VM of a machine and waits until it is gone. If that fails, the check stops.
func (p *probe) destroy(t target) {
	if err := p.remove(t); err != nil && !is(err, codes.NotFound) {
		p.stopf("DeleteMachine of %s: %v", t.name, err)
	}
	if err := p.waitUntilGone(p.ctx, t); err != nil {
		p.stopf("%s after DeleteMachine: %v", t.name, err)
	}
}

// cleanUp deletes all machines of the rule by ID and by name. It also runs after an interruption.
func (p *probe) cleanUp() {
	p.ctx = context.WithoutCancel(p.ctx)
	for _, t := range p.touched {
		if t.name == "" {
			continue
		}
		ids := p.ids[t.key()]
		if len(ids) == 0 { // the driver may have rejected its class or its Secret
			t = t.of(p.provider.Class).with(p.provider.Secret)
		}
		for _, id := range append(ids, "") {
			if err := p.clean(t.withID(id)); err != nil && (len(ids) > 0 || p.suite.existing[t.key()]) {
				p.suite.left = append(p.suite.left, p.redact(fmt.Sprintf("%s/%s %s: %v", t.namespace, t.name, cmp.Or(id, "(provider ID not known)"), err)))
				break
			}
		}
	}
}

// clean deletes a VM.
func (p *probe) clean(t target) error {
	var last error
	done := p.poll(p.ctx, func(context.Context) bool {
		last = p.remove(t)
		return last == nil || is(last, codes.NotFound, codes.Unimplemented) || isPermanent(last)
	})
	if !done || is(last, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented) {
		return last
	}
	return p.waitUntilGone(p.ctx, t)
}
