package fake

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// failure is the scripted result of a call. The zero value means that the call succeeds.
type failure struct {
	err error
	// after is true if the call takes effect before it fails.
	after bool
}

// Fail makes the next calls of a method fail with these codes, one call per code, without effect. With OK, a call
// succeeds. Uninitialized comes with the response of a successful call. Codes of earlier calls of Fail are used
// first.
func (d *Driver) Fail(method Method, results ...codes.Code) { d.fail(method, false, results) }

// FailWith is like Fail, but returns the given errors.
func (d *Driver) FailWith(method Method, errs ...error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, err := range errs {
		d.script[method] = append(d.script[method], failure{err: err})
	}
}

// FailAfter is like Fail, but the calls take effect: only their responses are lost.
func (d *Driver) FailAfter(method Method, results ...codes.Code) { d.fail(method, true, results) }

func (d *Driver) fail(method Method, after bool, results []codes.Code) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, code := range results {
		err := status.Error(code, fmt.Sprintf("%s failed as configured (%s)", method, code)) // nil if the code is OK
		d.script[method] = append(d.script[method], failure{err, after || code == codes.Uninitialized})
	}
}

// ForgetFailures drops the results of Fail, FailWith and FailAfter that no call has returned yet.
func (d *Driver) ForgetFailures() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.script)
}

// Block holds calls of a method. Create it with [Driver.Block].
type Block struct {
	entered  chan string
	released chan struct{}
	release  func()
}

// Block makes the calls of a method wait until the block is released or the call's context is done. A released call
// succeeds; a call whose context is done fails with Canceled or DeadlineExceeded.
func (d *Driver) Block(method Method) *Block {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &Block{entered: make(chan string, 1000), released: make(chan struct{})}
	b.release = sync.OnceFunc(func() { close(b.released) })
	d.blocks[method] = b
	return b
}

// Entered receives the name of the machine when a call starts to wait.
func (b *Block) Entered() <-chan string { return b.entered }

// Release lets waiting calls continue. Later calls do not wait.
func (b *Block) Release() { b.release() }

func (b *Block) wait(ctx context.Context, machine string) {
	select {
	case <-b.released:
		return
	default:
	}
	b.entered <- machine
	select {
	case <-b.released:
	case <-ctx.Done():
	}
}

// ended returns the error for a context that is done, and nil for any other context.
func ended(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return status.WrapError(codes.DeadlineExceeded, "the call did not complete in time", ctx.Err())
	default:
		return status.WrapError(codes.Canceled, "the call was canceled", ctx.Err())
	}
}

// Hook replaces a method. It may call do, which runs the replaced method.
type Hook[Request, Response any] func(ctx context.Context, req *Request, do func() (*Response, error)) (*Response, error)

// Always returns a hook that returns this response and this error for every call, without effect.
func Always[Request, Response any](resp *Response, err error) Hook[Request, Response] {
	return func(context.Context, *Request, func() (*Response, error)) (*Response, error) { return resp, err }
}

// hooks are the hooks of the methods. A nil hook has no effect.
type hooks struct {
	create     Hook[driver.CreateMachineRequest, driver.CreateMachineResponse]
	delete     Hook[driver.DeleteMachineRequest, driver.DeleteMachineResponse]
	status     Hook[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse]
	list       Hook[driver.ListMachinesRequest, driver.ListMachinesResponse]
	initialize Hook[driver.InitializeMachineRequest, driver.InitializeMachineResponse]
	update     Hook[driver.UpdateMachineRequest, driver.UpdateMachineResponse]
}

// OnCreate sets the hook of CreateMachine. Nil removes it.
func (d *Driver) OnCreate(hook Hook[driver.CreateMachineRequest, driver.CreateMachineResponse]) {
	set(d, &d.hooks.create, hook)
}

// OnDelete sets the hook of DeleteMachine. Nil removes it.
func (d *Driver) OnDelete(hook Hook[driver.DeleteMachineRequest, driver.DeleteMachineResponse]) {
	set(d, &d.hooks.delete, hook)
}

// OnStatus sets the hook of GetMachineStatus. Nil removes it.
func (d *Driver) OnStatus(hook Hook[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse]) {
	set(d, &d.hooks.status, hook)
}

// OnList sets the hook of ListMachines. Nil removes it.
func (d *Driver) OnList(hook Hook[driver.ListMachinesRequest, driver.ListMachinesResponse]) {
	set(d, &d.hooks.list, hook)
}

// OnInitialize sets the hook of InitializeMachine. Nil removes it.
func (d *Driver) OnInitialize(hook Hook[driver.InitializeMachineRequest, driver.InitializeMachineResponse]) {
	set(d, &d.hooks.initialize, hook)
}

// OnUpdate sets the hook of UpdateMachine. Nil removes it.
func (d *Driver) OnUpdate(hook Hook[driver.UpdateMachineRequest, driver.UpdateMachineResponse]) {
	set(d, &d.hooks.update, hook)
}

func set[T any](d *Driver, field *T, value T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*field = value
}

// call describes a method.
type call[Request, Response any] struct {
	method  Method
	machine *v1alpha1.Machine // nil for ListMachines
	hook    *Hook[Request, Response]
	effect  func(*Request) (*Response, error)
}

// run records a call, lets it wait and fail as scripted, and executes it.
func run[Request, Response any](ctx context.Context, d *Driver, req *Request, c call[Request, Response]) (resp *Response, err error) {
	entry, scripted, block := d.begin(c.method, c.machine, req)
	defer func() { d.end(entry, err) }() // even if a hook panics
	if block != nil {
		block.wait(ctx, entry.Machine)
	}
	if err := ended(ctx); err != nil && !d.ignoresContext() {
		return nil, err
	}
	if scripted.err != nil && !scripted.after {
		return nil, scripted.err
	}
	resp, err = c.do(ctx, d, req)
	switch {
	case scripted.err == nil || err != nil:
		return resp, err
	case status.Is(scripted.err, codes.Uninitialized):
		return resp, scripted.err
	default:
		return nil, scripted.err
	}
}

func (d *Driver) ignoresContext() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config.IgnoreContext
}

func (c call[Request, Response]) do(ctx context.Context, d *Driver, req *Request) (*Response, error) {
	d.mu.Lock()
	hook := *c.hook
	d.mu.Unlock()
	effect := func() (*Response, error) { return c.effect(req) }
	if hook != nil {
		return hook(ctx, req, effect)
	}
	return effect()
}
