package takeover

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/env"
)

// provider is the one of the recordings: a VM has the name of its machine, and so has its
// node, which joins at once; of two classes nothing can be made.
type provider struct {
	nodes client.Client
	mu    sync.Mutex
	vms   map[string]bool
	// made and removed are the names of VMs.
	made, removed []string
	// most is how many VMs it deletes before it does not come back until released is closed; if
	// that is nil, it always does.
	most     int
	released chan struct{}
	// silent tells that nodes do not join any more.
	silent bool
}

// holds makes it not come back from the deletion of a VM when it has deleted that many, until
// it is released.
func (p *provider) holds(most int) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	released := make(chan struct{})
	p.most, p.released = most, released
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.released = nil
		close(released)
	}
}

// lonely makes new VMs whose nodes do not join.
func (p *provider) lonely() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = true
}

// joins has the nodes of all VMs join, now and from now on.
func (p *provider) joins(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silent = false
	for name := range p.vms {
		if err := p.join(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func idOf(name string) string { return "fake:///" + name }

func (p *provider) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	name := req.Machine.Name
	switch req.MachineClass.Name {
	case "err-internal":
		return nil, status.Error(codes.Internal, "the provider says no: internal")
	case "err-resourceexhausted":
		return nil, status.Error(codes.ResourceExhausted, "the provider says no: resourceexhausted")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.vms[name] {
		p.vms[name] = true
		p.made = append(p.made, name)
	}
	if !p.silent {
		if err := p.join(ctx, name); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	return &driver.CreateMachineResponse{ProviderID: idOf(name), NodeName: name}, nil
}

// join makes the node of a VM.
func (p *provider) join(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: idOf(name)}}
	conditions := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	if err := p.nodes.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	before := node.DeepCopy()
	before.Status.Conditions, node.Status.Conditions = nil, conditions
	return p.nodes.Status().Patch(ctx, node, client.MergeFrom(before))
}

func (p *provider) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if released := p.released; released != nil && p.vms[req.Machine.Name] && len(p.removed) >= p.most {
		p.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if ctx.Err() != nil {
			return nil, status.Error(codes.Canceled, ctx.Err().Error())
		}
	}
	if p.vms[req.Machine.Name] {
		delete(p.vms, req.Machine.Name)
		p.removed = append(p.removed, req.Machine.Name)
	}
	return &driver.DeleteMachineResponse{}, nil
}

func (p *provider) GetMachineStatus(_ context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.vms[req.Machine.Name] {
		return nil, status.Error(codes.NotFound, "no such VM")
	}
	return &driver.GetMachineStatusResponse{ProviderID: idOf(req.Machine.Name), NodeName: req.Machine.Name}, nil
}

func (p *provider) ListMachines(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := map[string]string{}
	for name := range p.vms {
		list[idOf(name)] = name
	}
	return &driver.ListMachinesResponse{MachineList: list}, nil
}

// did tells which VMs were made and removed so far.
func (p *provider) did() (made, removed []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(made, p.made...), append(removed, p.removed...)
}

// newProvider has these VMs.
func newProvider(e *env.Env, vms ...string) *provider {
	p := &provider{nodes: e.Client, vms: map[string]bool{}}
	for _, name := range vms {
		p.vms[name] = true
	}
	return p
}

// run runs our manager on the test's namespace until the test ends, with the timeouts that
// are the default, under the roles that are shipped. All its requests go through the gate.
func run(t *testing.T, e *env.Env, p *provider, g *gate) {
	t.Helper()
	log.SetLogger(logr.Discard())
	access := e.UserWith(t, "config/rbac/control-role.yaml", "config/rbac/target-role.yaml")
	access.Wrap(g.around)
	ctx, stop := context.WithCancel(context.Background()) // the test's own ends before its clean-up
	ended := make(chan error, 1)
	go func() {
		ended <- manager.Run(ctx, manager.Config{
			Control: access, Target: access, Namespace: e.Namespace, Driver: p,
			ConcurrentSyncs: 5, CreationTimeout: 20 * time.Minute, ResourceExhaustedRetry: 10 * time.Minute,
			NodeConditions: []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"},
			Overshoot:      machineset.Overshoot{Up: 2, Down: 1}, ProtectNodes: true,
			Log: logr.Discard(),
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the manager ends with %v", err)
		}
	})
	awaitWork(t, e)
}

// awaitWork waits until the manager has worked on a set that is made for that. It looks at
// what is there before in the same order, from the same caches.
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
	}).WithTimeout(patience).Should(gomega.Equal(canary.Generation), "the manager does not work")
	must(t, e.Client.Delete(t.Context(), canary))
	gomega.NewWithT(t).Eventually(func() bool {
		return apierrors.IsNotFound(e.Client.Get(t.Context(), client.ObjectKeyFromObject(canary), canary))
	}).WithTimeout(patience).Should(gomega.BeTrue(), "the set is not let go")
}
