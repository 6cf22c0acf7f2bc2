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

// record is a call that was answered, or was given up.
type record struct {
	method string
	err    error
	// empty is true if the call returned neither a response nor an error.
	empty bool
	// changed names what the driver changed in the request.
	changed string
	// logged is what the driver logged.
	logged []string
	// hung is true if the call did not return after the end of its context.
	hung bool
}

const (
	// grace is how long a call may go on after its context has ended. It only bounds the wait
	// for a driver that hangs.
	grace = 30 * time.Second
	// labelKey is the profiler label of the goroutines of a driver.
	labelKey = "conformance"
)

// do calls a method of the driver, with a deadline and a logger, and records the call.
func do[Q, R any](p *probe, ctx context.Context, method string, call func(context.Context, *Q) (*R, error), req *Q) (*R, error) {
	ctx, cancel := context.WithTimeout(ctx, p.suite.options.Timeout)
	defer cancel()
	made := &record{method: method}
	log := &observe.Log{}
	ctx = logr.NewContext(ctx, log.Logger())
	before := observe.CopyOf(req)
	type answer struct {
		resp *R
		err  error
	}
	answered := make(chan answer, 1)
	go pprof.Do(ctx, pprof.Labels(labelKey, p.label()), func(ctx context.Context) {
		var a answer
		defer func() { answered <- a }()
		defer func() {
			if what := recover(); what != nil {
				a.err = status.Error(codes.Internal, fmt.Sprintf("the driver panics: %v\n%s", what, debug.Stack()))
			}
		}()
		a.resp, a.err = call(observe.EndingAt(ctx), req)
	})
	var a answer
	select {
	case a = <-answered:
	case <-ctx.Done():
		select {
		case a = <-answered:
		case <-time.After(grace):
			made.hung = true
			a.err = status.Error(codes.DeadlineExceeded, method+" has not returned although its context has ended")
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

// label is unique to the rule.
func (p *probe) label() string { return p.suite.name + "-" + p.rule.ID() }

func is(err error, want ...codes.Code) bool { return slices.Contains(want, status.Code(err)) }

// exists reports whether an answer of GetMachineStatus means that there is a VM.
func exists(err error) bool { return is(err, codes.OK, codes.Uninitialized) }

// refused reports whether an answer of CreateMachine means that no VM was created by the call.
func refused(err error) bool {
	return is(err, codes.InvalidArgument, codes.OutOfRange, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
		codes.ResourceExhausted, codes.FailedPrecondition, codes.Unimplemented)
}

// poll repeats a question until the answer is yes, in growing intervals. It returns false when the
// time is over.
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

var errLeft = errors.New("it still exists")

// hopeless reports whether an answer will be the same when it is asked for again.
func hopeless(err error) bool {
	return is(err, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated)
}

// gone waits until there is no VM of a machine any more, as the controllers do.
func (p *probe) gone(ctx context.Context, t target) error {
	last := errLeft
	if p.poll(ctx, func(ctx context.Context) bool {
		_, err := do(p, ctx, "GetMachineStatus", p.provider.Driver.GetMachineStatus, &driver.GetMachineStatusRequest{
			Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(),
		})
		if last = err; exists(err) {
			last = errLeft
		}
		return is(err, codes.NotFound, codes.Unimplemented) || hopeless(err)
	}) && !hopeless(last) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.suite.existing, t.key())
		return nil
	}
	return last
}

// destroy deletes the VM of a machine and waits until it is gone, which must succeed.
func (p *probe) destroy(t target) {
	if err := p.remove(t); err != nil && !is(err, codes.NotFound) {
		p.stopf("DeleteMachine of %s: %v", t.name, err)
	}
	if err := p.gone(p.ctx, t); err != nil {
		p.stopf("%s after DeleteMachine: %v", t.name, err)
	}
}

// cleanUp deletes all machines of the rule, also when the run was interrupted, by their IDs and by
// their names.
func (p *probe) cleanUp() {
	p.ctx = context.WithoutCancel(p.ctx)
	for _, t := range p.touched {
		if t.name == "" {
			continue
		}
		ids := p.ids[t.key()]
		if len(ids) == 0 { // it was refused, perhaps for its class or its Secret
			t = t.of(p.provider.Class).with(p.provider.Secret)
		}
		for _, id := range append(ids, "") {
			if err := p.clean(t.known(id)); err != nil && (len(ids) > 0 || p.suite.existing[t.key()]) {
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
		return last == nil || is(last, codes.NotFound, codes.Unimplemented) || hopeless(last)
	})
	if !done || is(last, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented) {
		return last
	}
	return p.gone(p.ctx, t)
}
