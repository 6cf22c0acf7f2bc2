package sim

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/dice"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// call is a call with its parsed request.
type call struct {
	method Method
	spec   spec.Spec
	// namespace and name of the machine, and both as "namespace/name". They are empty for calls without a machine.
	namespace, name, key string
	// id is the machine's provider ID, if it has one.
	id string
	// account is the account that the Secret names.
	account string
	// begun is the pool where the VM's creation started. It is empty if the pool is unknown, or if the creation
	// started in another account.
	begun string
}

// owner returns the owner of the VMs that belong to the class.
func (c call) owner() owner {
	return owner{account: c.account, pool: c.spec.Pool, apiGroup: c.spec.APIGroup, tags: c.spec.Tags}
}

// created returns the owner of VMs that CreateMachine may have created for the machine. The class may have been
// edited since then.
func (c call) created() owner {
	switch {
	case c.id != "":
		return owner{account: c.account, apiGroup: c.spec.APIGroup, anyPool: true}
	case c.begun != "":
		return owner{account: c.account, apiGroup: c.spec.APIGroup, pool: c.begun}
	}
	return c.owner()
}

// location returns the location of the VMs in a pool.
func (c call) location(pool string) string { return c.account + "/" + pool }

const (
	// accountKey is the key in the Secret that names the account.
	accountKey     = "account"
	defaultAccount = "default"
)

func accountOf(secret *corev1.Secret) string {
	if secret == nil || len(secret.Data[accountKey]) == 0 {
		return defaultAccount
	}
	return string(secret.Data[accountKey])
}

// vm returns a name of the VM for messages.
func (c call) vm() string { return cmp.Or(c.id, c.key) }

// machineCall parses a request for a machine and executes the call.
func machineCall[Response any](ctx context.Context, d *Driver, method Method, req request, effect func(call) (*Response, error)) (*Response, error) {
	c, err := parse(req)
	c.method = method
	if err != nil {
		return nil, d.record(method, c.key, err)
	}
	return run(ctx, d, c, effect)
}

// request contains the fields that all requests for machines have.
type request struct {
	machine *v1alpha1.Machine
	class   *v1alpha1.MachineClass
	secret  *corev1.Secret
	// parse parses as much of the class as the call needs.
	parse func(*v1alpha1.MachineClass) (spec.Spec, error)
}

func parse(req request) (call, error) {
	machine := req.machine
	if machine == nil {
		return call{}, status.Error(codes.InvalidArgument, "the request has no machine")
	}
	c := call{
		namespace: cmp.Or(machine.Namespace, defaultNamespace), name: machine.Name,
		id: machine.Spec.ProviderID, account: accountOf(req.secret),
	}
	c.key = c.namespace + "/" + c.name
	if account, pool, ok := strings.Cut(driver.Location(machine), "/"); ok && account == c.account {
		c.begun = pool
	}
	err := spec.CheckName(c.name)
	if err == nil {
		c.spec, err = req.parse(req.class)
	}
	return c, err
}

// classCall parses a request for a class, which only lists VMs or zones, and executes the call.
func classCall[Response any](ctx context.Context, d *Driver, method Method, class *v1alpha1.MachineClass, secret *corev1.Secret, effect func(call) (*Response, error)) (*Response, error) {
	parsed, err := spec.ParseToList(class)
	if err != nil {
		return nil, d.record(method, "", err)
	}
	return run(ctx, d, call{method: method, spec: parsed, account: accountOf(secret)}, effect)
}

// run executes a call. Of all errors, only Uninitialized comes with a response.
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

// do waits for the latency of a call, applies a fault, calls effect, and records the result.
func (d *Driver) do(ctx context.Context, c call, effect func() error) error {
	if err := d.sleep(ctx, d.jittered(c, "latency", c.spec.Latency)); err != nil {
		return d.record(c.method, c.key, err)
	}
	if c.spec.Script.Out(c.spec.Zone, c.key != "") {
		return d.record(c.method, c.key, status.Error(codes.Unavailable, "simulated outage"))
	}
	fault, err := d.cloud.faults.next(c)
	if fault == nil {
		return d.record(c.method, c.key, effect())
	}
	if fault.LostAnswer {
		// A call that fails anyway returns its own error.
		if own := effect(); own != nil {
			return d.record(c.method, c.key, own)
		}
	}
	if fault.Hang {
		<-ctx.Done()
		err = contextError(ctx)
	}
	return d.record(c.method, c.key, err)
}

// record records the result of a call in the journal.
func (d *Driver) record(method Method, key string, err error) error {
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

// jittered varies a duration by a factor that depends on the seed.
func (d *Driver) jittered(c call, what string, duration time.Duration) time.Duration {
	if duration == 0 || c.spec.Jitter == 0 && c.spec.Distribution == dice.Uniform {
		return duration
	}
	return c.spec.Distribution.Spread(duration, c.spec.Jitter, dice.Chance(strconv.FormatUint(d.cloud.seed, 10), what, string(c.method), c.key))
}
