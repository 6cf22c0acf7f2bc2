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

// failure is what a call is answered with. The zero value lets it work.
type failure struct {
	err error
	// after lets the call take effect first.
	after bool
}

// Fail has the next calls of a method answered with these codes, one after another, and take
// no effect. OK lets a call work; Uninitialized comes with the response of a call that works.
// What was scripted before comes first.
func (d *Driver) Fail(method Method, answers ...codes.Code) { d.fail(method, false, answers) }

// FailWith is Fail with errors of the test's own.
func (d *Driver) FailWith(method Method, errs ...error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, err := range errs {
		d.script[method] = append(d.script[method], failure{err: err})
	}
}

// FailAfter is Fail for calls that take effect all the same: their answers get lost.
func (d *Driver) FailAfter(method Method, answers ...codes.Code) { d.fail(method, true, answers) }

func (d *Driver) fail(method Method, after bool, answers []codes.Code) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, code := range answers {
		err := status.Error(code, fmt.Sprintf("%s is out of order (%s)", method, code)) // nil for OK
		d.script[method] = append(d.script[method], failure{err, after || code == codes.Uninitialized})
	}
}

// ForgetFailures drops the answers of Fail, FailWith and FailAfter that no call has got yet.
func (d *Driver) ForgetFailures() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.script)
}

// Block holds calls of a method. Make it with [Driver.Block].
type Block struct {
	entered  chan string
	released chan struct{}
	release  func()
}

// Block has the calls of a method wait, from now on, until the block is released or the
// call's context ends; then they work, or are answered with Canceled or DeadlineExceeded.
func (d *Driver) Block(method Method) *Block {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := &Block{entered: make(chan string, 1000), released: make(chan struct{})}
	b.release = sync.OnceFunc(func() { close(b.released) })
	d.blocks[method] = b
	return b
}

// Entered receives the name of a call's machine when the call begins to wait.
func (b *Block) Entered() <-chan string { return b.entered }

// Release lets the calls go on that wait, and later ones through.
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

// ended turns the end of a context into an answer. It is nil while the context goes on.
func ended(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return status.WrapError(codes.DeadlineExceeded, "the call was not done in time", ctx.Err())
	default:
		return status.WrapError(codes.Canceled, "the call was cancelled", ctx.Err())
	}
}

// Hook stands in for a method. What the method would do is do, which it may call or not.
type Hook[Request, Response any] func(ctx context.Context, req *Request, do func() (*Response, error)) (*Response, error)

// hooks are those of the methods, nil where there is none.
type hooks struct {
	create     Hook[driver.CreateMachineRequest, driver.CreateMachineResponse]
	delete     Hook[driver.DeleteMachineRequest, driver.DeleteMachineResponse]
	status     Hook[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse]
	list       Hook[driver.ListMachinesRequest, driver.ListMachinesResponse]
	initialize Hook[driver.InitializeMachineRequest, driver.InitializeMachineResponse]
}

// OnCreate has the hook stand in for CreateMachine. Nil takes it away.
func (d *Driver) OnCreate(hook Hook[driver.CreateMachineRequest, driver.CreateMachineResponse]) {
	set(d, &d.hooks.create, hook)
}

// OnDelete has the hook stand in for DeleteMachine. Nil takes it away.
func (d *Driver) OnDelete(hook Hook[driver.DeleteMachineRequest, driver.DeleteMachineResponse]) {
	set(d, &d.hooks.delete, hook)
}

// OnStatus has the hook stand in for GetMachineStatus. Nil takes it away.
func (d *Driver) OnStatus(hook Hook[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse]) {
	set(d, &d.hooks.status, hook)
}

// OnList has the hook stand in for ListMachines. Nil takes it away.
func (d *Driver) OnList(hook Hook[driver.ListMachinesRequest, driver.ListMachinesResponse]) {
	set(d, &d.hooks.list, hook)
}

// OnInitialize has the hook stand in for InitializeMachine. Nil takes it away.
func (d *Driver) OnInitialize(hook Hook[driver.InitializeMachineRequest, driver.InitializeMachineResponse]) {
	set(d, &d.hooks.initialize, hook)
}

func set[T any](d *Driver, field *T, value T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*field = value
}

// call is how a method is carried out.
type call[Request, Response any] struct {
	method  Method
	machine *v1alpha1.Machine // nil for a method that is not about one
	hook    *Hook[Request, Response]
	effect  func(*Request) (*Response, error)
}

// run records a call, has it wait and fail as it is scripted, and carries it out.
func run[Request, Response any](ctx context.Context, d *Driver, req *Request, c call[Request, Response]) (resp *Response, err error) {
	entry, scripted, block := d.begin(c.method, c.machine, req)
	defer func() { d.end(entry, err) }() // also of a hook that panics
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
