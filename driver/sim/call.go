package sim

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// call is a call with its parsed request.
type call struct {
	method Method
	spec   spec.Spec
	// namespace and name of the machine, and both as "namespace/name". Empty for calls
	// without a machine.
	namespace, name, key string
	// id is the machine's provider ID, if it has one.
	id string
}

func (c call) owner() owner {
	return owner{pool: c.spec.Pool, apiGroup: c.spec.APIGroup, tags: c.spec.Tags}
}

// vm names the VM for people.
func (c call) vm() string { return cmp.Or(c.id, c.key) }

// machineCall parses a request for a machine and carries the call out.
func machineCall[Response any](ctx context.Context, d *Driver, method Method, machine *v1alpha1.Machine, class *v1alpha1.MachineClass,
	effect func(call) (*Response, error)) (*Response, error) {
	if machine == nil {
		return nil, d.answer(method, "", status.Error(codes.InvalidArgument, "the request has no machine"))
	}
	c := call{method: method, namespace: cmp.Or(machine.Namespace, defaultNamespace), name: machine.Name, id: machine.Spec.ProviderID}
	c.key = c.namespace + "/" + c.name
	err := checkName(c.name)
	if err == nil {
		c.spec, err = spec.Parse(class)
	}
	if err != nil {
		return nil, d.answer(method, c.key, err)
	}
	return run(ctx, d, c, effect)
}

// classCall parses a request for a class and carries the call out.
func classCall[Response any](ctx context.Context, d *Driver, method Method, class *v1alpha1.MachineClass, effect func(call) (*Response, error)) (*Response, error) {
	parsed, err := spec.Parse(class)
	if err != nil {
		return nil, d.answer(method, "", err)
	}
	return run(ctx, d, call{method: method, spec: parsed}, effect)
}

// run carries a call out. Of all errors, only Uninitialized comes with a response.
func run[Response any](ctx context.Context, d *Driver, c call, effect func(call) (*Response, error)) (*Response, error) {
	var resp *Response
	err := d.do(ctx, c, func() (err error) {
		resp, err = effect(c)
		return err
	})
	if err != nil && !status.Is(err, codes.Uninitialized) {
		return nil, err
	}
	return resp, err
}

func checkName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return status.Error(codes.InvalidArgument, fmt.Sprintf("machine name %q: %s", name, strings.Join(problems, "; ")))
	}
	return nil
}

// do waits for the latency of a call, applies a fault, calls effect, and answers.
func (d *Driver) do(ctx context.Context, c call, effect func() error) error {
	if err := d.sleep(ctx, d.jittered(c, "latency", c.spec.Latency)); err != nil {
		return d.answer(c.method, c.key, err)
	}
	fault, err := d.cloud.faults.next(c.method, c.key)
	if fault == nil {
		return d.answer(c.method, c.key, effect())
	}
	if fault.LostAnswer {
		// A call that would have failed anyway is answered with its own error.
		if own := effect(); own != nil {
			return d.answer(c.method, c.key, own)
		}
	}
	if fault.Hang {
		<-ctx.Done()
		err = contextError(ctx)
	}
	return d.answer(c.method, c.key, err)
}

// answer records the answer of a call in the journal.
func (d *Driver) answer(method Method, key string, err error) error {
	entry := Entry{Machine: key, Method: method, Code: status.Code(err).String()}
	failure := d.cloud.locked(func() error { return d.cloud.store.add(change{Entry: entry}) })
	if err != nil {
		return err
	}
	return failure
}

func (d *Driver) sleep(ctx context.Context, duration time.Duration) error {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	if duration <= 0 {
		return nil
	}
	select {
	case <-time.After(duration):
		return nil
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// jittered changes a duration by a fraction that depends on the seed.
func (d *Driver) jittered(c call, what string, duration time.Duration) time.Duration {
	if c.spec.Jitter == 0 {
		return duration
	}
	dice := chance(strconv.FormatUint(d.cloud.seed, 10), what, string(c.method), c.key)
	return duration + time.Duration(float64(duration)*c.spec.Jitter*(2*dice-1))
}
