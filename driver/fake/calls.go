package fake

import (
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Call is a call of a method.
type Call struct {
	// Method that was called.
	Method Method
	// Machine is the name of the machine. It is empty for ListMachines.
	Machine string
	// Began is the time of the call.
	Began time.Time
	// Request is a pointer to the method's request.
	Request any
	// Overlaps is true if another call for this machine was in progress.
	Overlaps bool
	// Returned is true if the method has returned; Err is then its error.
	Returned bool
	Err      error
}

// Calls returns the calls of the given methods so far, or of all methods if none is given, in the order in which
// they began.
func (d *Driver) Calls(methods ...Method) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var calls []Call
	for _, c := range d.calls {
		if len(methods) == 0 || slices.Contains(methods, c.Method) {
			calls = append(calls, *c)
		}
	}
	return calls
}

// Requests returns the requests of one type so far, for example those to create machines:
// fake.Requests[*driver.CreateMachineRequest](d).
func Requests[Request any](d *Driver) []Request {
	var requests []Request
	for _, c := range d.Calls() {
		if req, ok := c.Request.(Request); ok {
			requests = append(requests, req)
		}
	}
	return requests
}

// ForgetCalls empties the record of calls. Later calls still overlap those that run.
func (d *Driver) ForgetCalls() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

// begin records a call and takes its failure from the script.
func (d *Driver) begin(method Method, machine *v1alpha1.Machine, req any) (*Call, failure, *Block) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &Call{Method: method, Began: time.Now(), Request: req}
	if machine != nil {
		c.Machine = machine.Name
		c.Overlaps = d.running[c.Machine] > 0
	}
	d.running[c.Machine]++
	d.calls = append(d.calls, c)
	var next failure
	if script := d.script[method]; len(script) > 0 {
		next, d.script[method] = script[0], script[1:]
	}
	return c, next, d.blocks[method]
}

// end records the result of a call.
func (d *Driver) end(c *Call, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.Returned, c.Err = true, err
	d.running[c.Machine]--
}
