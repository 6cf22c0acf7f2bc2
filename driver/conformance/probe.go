package conformance

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/internal/redact"
)

// probe checks one rule.
type probe struct {
	ctx      context.Context
	suite    *suite
	rule     Rule
	provider Provider

	mu       sync.Mutex
	failures []string
	// broken is true if the driver broke the rule before ctx was done.
	broken bool
	calls  []record
	// touched are the targets for which CreateMachine was called, without an ID.
	touched []target
	// ids are the provider IDs that were returned, by the key of the target.
	ids map[string][]string
}

// A check panics with skipped to stop without a result, and with stopped to stop after a failure.
type (
	skipped struct{ why string }
	stopped struct{}
)

// run runs the check.
func (p *probe) run() (result Result) {
	p.ids = map[string][]string{}
	defer func() {
		switch ended := recover().(type) {
		case nil, stopped:
		case skipped:
			result = p.rule.result(Skipped, ended.why)
		default:
			panic(ended)
		}
		if len(p.failures) > 0 {
			result = p.rule.result(Failed, p.failures...)
		}
	}()
	p.rule.check(p)
	return p.rule.result(Passed)
}

// failf records how the driver breaks the rule. The check continues.
func (p *probe) failf(format string, values ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = p.broken || p.ctx.Err() == nil
	p.failures = append(p.failures, p.redact(fmt.Sprintf(format, values...)))
}

// redact removes the values of all Secrets from a text, for example from a driver's error.
func (p *probe) redact(text string) string {
	return redact.New(len(text), p.provider.secrets()...).Text(text)
}

// stopf records a failure as failf does and stops the check.
func (p *probe) stopf(format string, values ...any) {
	p.failf(format, values...)
	panic(stopped{})
}

// skip stops the check without a result.
func (p *probe) skip(why string) { panic(skipped{why}) }

// need skips the check unless a condition holds.
func (p *probe) need(ok bool, what string) {
	if !ok {
		p.skip("requires " + what)
	}
}

// target is the machine that a request is about.
type target struct {
	namespace, name string
	// id is the provider ID that is stored with the machine. It is empty before the ID is stored.
	id     string
	class  *v1alpha1.MachineClass
	secret *corev1.Secret
	// annotations of the machine.
	annotations map[string]string
	uid         string
	// bare machines have only a name and an ID.
	bare bool
}

// target returns a machine of the rule whose name has the given suffix.
func (p *probe) target(suffix string) target {
	namespace := p.provider.Class.Namespace
	if namespace == "" {
		namespace = "default"
	}
	name := fmt.Sprintf("%s%s-r%02d-%s", Prefix, p.suite.name, p.rule.Number, suffix)
	return target{namespace: namespace, name: name, class: p.provider.Class, secret: p.provider.Secret}
}

func (t target) of(class *v1alpha1.MachineClass) target { t.class = class; return t }
func (t target) with(secret *corev1.Secret) target      { t.secret = secret; return t }
func (t target) withID(id string) target                { t.id = id; return t }
func (t target) in(namespace string) target             { t.namespace = namespace; return t }
func (t target) withLocation(location string) target {
	t.annotations = map[string]string{driver.AnnotationLocation: location}
	return t
}

// key returns an identifier of the target's VM.
func (t target) key() string { return t.namespace + "/" + t.name + "@" + driver.APIGroup(t.class) }

// machine returns a new object.
func (t target) machine() *v1alpha1.Machine {
	m := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: t.name, Annotations: maps.Clone(t.annotations)},
		Spec:       v1alpha1.MachineSpec{ProviderID: t.id},
	}
	if !t.bare {
		m.UID = types.UID(cmp.Or(t.uid, "c0f00000-0000-4000-8000-000000000001"))
		m.Labels = map[string]string{"conformance": "millwright"}
		m.Spec.Class = v1alpha1.ClassSpec{Kind: "MachineClass", Name: t.class.Name}
	}
	return m
}

// create calls CreateMachine if the limit allows another machine.
func (p *probe) create(ctx context.Context, t target) (*driver.CreateMachineResponse, error) {
	p.count(t)
	resp, err := do(p, ctx, "CreateMachine", p.provider.Driver.CreateMachine, &driver.CreateMachineRequest{
		Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(),
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	switch key := t.key(); {
	case err == nil && resp != nil && resp.ProviderID != "" && !slices.Contains(p.ids[key], resp.ProviderID):
		p.ids[key] = append(p.ids[key], resp.ProviderID)
	case refused(err) && len(p.ids[key]) == 0 && p.suite.existing[key]:
		p.suite.created--
		delete(p.suite.existing, key)
	}
	return resp, err
}

// count counts a machine that does not exist yet. Concurrent calls count their machines before they start.
func (p *probe) count(t target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.suite
	if s.existing[t.key()] {
		return
	}
	if limit := s.options.MaxMachines; limit > 0 && s.created >= limit {
		panic(skipped{fmt.Sprintf("reached the limit of %d machines", limit)})
	}
	s.created++
	s.existing[t.key()] = true
	p.touched = append(p.touched, t)
}

// make creates and initializes the VM of a machine and returns the machine with its ID. If that fails, the check
// stops.
func (p *probe) make(t target) target {
	t = p.makeOnly(t)
	p.settle(t)
	return t
}

// settle initializes a VM if VMs need it. Other rules check whether that succeeds.
func (p *probe) settle(t target) {
	if p.provider.Uninitialized {
		_ = p.initialize(t)
	}
}

// makeOnly is make without the initialization.
func (p *probe) makeOnly(t target) target {
	resp, err := p.create(p.ctx, t)
	switch {
	case err != nil:
		p.stopf("CreateMachine of %s: %v", t.name, err)
	case resp == nil || resp.ProviderID == "":
		p.stopf("CreateMachine of %s returned OK without a provider ID", t.name)
	}
	return t.withID(resp.ProviderID)
}

// remove calls DeleteMachine.
func (p *probe) remove(t target) error {
	_, err := do(p, p.ctx, "DeleteMachine", p.provider.Driver.DeleteMachine, &driver.DeleteMachineRequest{
		Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(),
	})
	return err
}

// status calls GetMachineStatus. The check is skipped if the driver does not implement it.
func (p *probe) status(t target) (*driver.GetMachineStatusResponse, error) {
	resp, err := p.tryStatus(t)
	if is(err, codes.Unimplemented) {
		p.skip("the driver does not implement GetMachineStatus")
	}
	return resp, err
}

func (p *probe) tryStatus(t target) (*driver.GetMachineStatusResponse, error) {
	return do(p, p.ctx, "GetMachineStatus", p.provider.Driver.GetMachineStatus, &driver.GetMachineStatusRequest{
		Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(),
	})
}

// idOf returns the ID of the VM that GetMachineStatus finds, or an empty string.
func (p *probe) idOf(t target) string {
	resp, err := p.status(t)
	if !exists(err) || resp == nil {
		return ""
	}
	return resp.ProviderID
}

// list calls ListMachines. The check is skipped if the driver does not implement it.
func (p *probe) list(class *v1alpha1.MachineClass) map[string]string {
	machines, err := p.tryList(class, p.provider.Secret)
	switch {
	case is(err, codes.Unimplemented):
		p.skip("the driver does not implement ListMachines")
	case err != nil:
		p.stopf("ListMachines: %v", err)
	}
	return machines
}

func (p *probe) tryList(class *v1alpha1.MachineClass, secret *corev1.Secret) (map[string]string, error) {
	resp, err := do(p, p.ctx, "ListMachines", p.provider.Driver.ListMachines, &driver.ListMachinesRequest{
		MachineClass: class.DeepCopy(), Secret: secret.DeepCopy(),
	})
	if err != nil || resp == nil {
		return nil, err
	}
	return resp.MachineList, nil
}

// initialize calls InitializeMachine.
func (p *probe) initialize(t target) error {
	initializer, ok := driver.As[driver.Initializer](p.provider.Driver)
	p.need(ok && p.provider.Uninitialized, "VMs that need initialization")
	_, err := do(p, p.ctx, "InitializeMachine", initializer.InitializeMachine, &driver.InitializeMachineRequest{
		Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(),
	})
	return err
}

// instances returns the IDs of the existing VMs, from the provider's hook if there is one and from ListMachines
// otherwise. The value is false for VMs that belong to others.
func (p *probe) instances() map[string]bool {
	found := map[string]bool{}
	if hook := p.provider.Hooks.Instances; hook != nil {
		ids, err := hook(p.ctx)
		if err != nil {
			p.stopf("cannot list the VMs of the provider: %v", err)
		}
		for _, id := range ids {
			found[id] = true
		}
		return found
	}
	for _, class := range []*v1alpha1.MachineClass{p.provider.Class, p.provider.otherCluster()} {
		if class != nil {
			for id, machine := range p.list(class) {
				found[id] = strings.HasPrefix(machine, Prefix+p.suite.name)
			}
		}
	}
	return found
}

// added returns the IDs of VMs that exist now and did not exist before.
func (p *probe) added(before map[string]bool) []string {
	now := p.instances()
	maps.DeleteFunc(now, func(id string, ours bool) bool { return before[id] || !ours })
	return slices.Sorted(maps.Keys(now))
}
