package takeover

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
)

// provider imitates that of the recordings: a VM and its node, which joins immediately, have the name of their
// Machine. With two of the classes, no VM can be created.
type provider struct {
	*fake.Driver
	nodes client.Client
	// before are the names of its initial VMs.
	before []string
	// silent is true while nodes do not join.
	silent atomic.Bool
}

// newProvider returns a provider with the VMs of these Machines.
func newProvider(e *env.Env, machines ...v1alpha1.Machine) *provider {
	p := &provider{nodes: e.Client, Driver: fake.New(fake.Config{
		ProviderID: func(machine *v1alpha1.Machine, _ int) string { return "fake:///" + machine.Name },
	})}
	for i := range machines {
		if m := &machines[i]; m.Spec.ProviderID != "" {
			class := m.Namespace + "/" + m.Spec.Class.Name
			p.Add(fake.VM{ProviderID: m.Spec.ProviderID, Namespace: m.Namespace, Machine: m.Name, Class: class, Initialized: true})
			p.before = append(p.before, m.Name)
		}
	}
	p.OnCreate(p.create)
	return p
}

func (p *provider) create(ctx context.Context, req *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
	switch req.MachineClass.Name {
	case "err-internal":
		return nil, status.Error(codes.Internal, "the provider says no: internal")
	case "err-resourceexhausted":
		return nil, status.Error(codes.ResourceExhausted, "the provider says no: resourceexhausted")
	}
	resp, err := do()
	if err != nil || p.silent.Load() {
		return resp, err
	}
	// A VM joins even if the manager that created it is gone.
	if err := p.join(context.WithoutCancel(ctx), resp.NodeName, resp.ProviderID); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return resp, nil
}

// unjoined keeps the nodes of new VMs from joining.
func (p *provider) unjoined() { p.silent.Store(true) }

// joins makes the nodes of all VMs join, including those of future VMs.
func (p *provider) joins(ctx context.Context) error {
	p.silent.Store(false)
	for _, vm := range p.VMs() {
		if err := p.join(ctx, vm.NodeName, vm.ProviderID); err != nil {
			return err
		}
	}
	return nil
}

// join creates the node of a VM.
func (p *provider) join(ctx context.Context, name, providerID string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	conditions := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	if err := p.nodes.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	before := node.DeepCopy()
	before.Status.Conditions, node.Status.Conditions = nil, conditions
	return p.nodes.Status().Patch(ctx, node, client.MergeFrom(before))
}

// did returns the names of the VMs that were created and removed so far.
func (p *provider) did() (made, removed []string) {
	for _, call := range p.Calls(fake.CreateMachine) {
		if call.Returned && call.Err == nil && !slices.Contains(p.before, call.Machine) && !slices.Contains(made, call.Machine) {
			made = append(made, call.Machine)
		}
	}
	for _, name := range slices.Concat(p.before, made) {
		if !slices.ContainsFunc(p.VMs(), func(vm fake.VM) bool { return vm.Machine == name }) {
			removed = append(removed, name)
		}
	}
	return made, removed
}

// run runs our manager in the test's namespace until the end of the test, with default timeouts and the shipped
// roles. All its requests pass the gate.
func run(t *testing.T, e *env.Env, p *provider, g *gate) {
	t.Helper()
	start(t, e, p, access(t, e, g), manager.Config{})
}

// access returns our manager's configuration with the shipped roles. Its requests pass the gate.
func access(t *testing.T, e *env.Env, g *gate) *rest.Config {
	t.Helper()
	log.SetLogger(logr.Discard())
	access := e.UserWith(t, "config/rbac/control-role.yaml", "config/rbac/target-role.yaml")
	access.Wrap(g.around)
	return access
}

// start is like run, for one process and with the health timeout of the configuration. It returns a function that
// stops the manager before the end of the test.
func start(t *testing.T, e *env.Env, p *provider, access *rest.Config, cfg manager.Config) (stop func()) {
	t.Helper()
	cfg.Control, cfg.Target, cfg.Namespace = access, access, e.Namespace
	if cfg.Half != manager.HalfSets {
		cfg.Drivers = registry.Only(registry.AnyProvider, struct{ driver.Driver }{p})
	}
	cfg.ConcurrentSyncs, cfg.CreationTimeout, cfg.ResourceExhaustedRetry = 5, 20*time.Minute, 10*time.Minute
	cfg.NodeConditions = []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"}
	cfg.Overshoot, cfg.ProtectNodes, cfg.Log = machineset.Overshoot{Up: 2, Down: 1}, true, logr.Discard()
	ctx, cancel := context.WithCancel(context.Background()) // the test's context is canceled before the cleanup
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx, cfg) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ends with %v", err)
		}
	})
	t.Cleanup(stop)
	if cfg.Half != manager.HalfMachines {
		awaitWork(t, e)
	}
	return stop
}

// awaitWork waits until the manager has reconciled a new MachineSet. It reconciles existing objects before that,
// in the same order and from the same caches.
func awaitWork(t *testing.T, e *env.Env) {
	t.Helper()
	labels := map[string]string{"canary": "yes"}
	canary := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "canary"}}
	canary.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	canary.Spec.Template.Labels = labels
	canary.Spec.Template.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "c1"}
	must(t, e.Client.Create(t.Context(), canary))
	gomega.NewWithT(t).Eventually(func() int64 {
		must(t, e.Client.Get(t.Context(), client.ObjectKeyFromObject(canary), canary))
		return canary.Status.ObservedGeneration
	}).WithTimeout(waitTimeout).Should(gomega.Equal(canary.Generation), "the manager does not work")
	must(t, e.Client.Delete(t.Context(), canary))
	gomega.NewWithT(t).Eventually(func() bool {
		return apierrors.IsNotFound(e.Client.Get(t.Context(), client.ObjectKeyFromObject(canary), canary))
	}).WithTimeout(waitTimeout).Should(gomega.BeTrue(), "the set is not let go")
}
