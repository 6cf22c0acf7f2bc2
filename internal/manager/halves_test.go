package manager

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
)

// refusals collects the requests that an API server forbids.
type refusals struct {
	mu    sync.Mutex
	paths []string
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func (r *refusals) on(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil && response.StatusCode == http.StatusForbidden {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.paths = append(r.paths, request.Method+" "+request.URL.Path)
			}
			return response, err
		})
	})
	return config
}

func (r *refusals) want(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.paths) > 0 {
		t.Errorf("forbidden: %q", slices.Compact(r.paths))
	}
}

// onePool returns a deployment of two machines with everything that it needs.
func onePool(namespace string) []client.Object {
	labels := map[string]string{"name": "one"}
	objects := oneMachine(namespace)
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one"}}
	deployment.Spec.Replicas = 2
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	deployment.Spec.Template.Labels = labels
	deployment.Spec.Template.Spec = objects[2].(*v1alpha1.Machine).Spec
	return append(objects, deployment)
}

// half is a manager of one half that runs with only the permissions that it needs.
type half struct {
	*election
	cfg       Config
	forbidden refusals
	stop      func()
}

// startHalf starts a manager of one half next to a pool, with a target cluster.
func startHalf(t *testing.T, which Half, cfg Config, roles ...string) *half {
	t.Helper()
	return startHalfIn(t, newElection(t), which, cfg, roles...)
}

// startHalfIn does the same in the namespace of an election.
func startHalfIn(t *testing.T, e *election, which Half, cfg Config, roles ...string) *half {
	t.Helper()
	h := &half{election: e, cfg: cfg}
	access := h.forbidden.on(h.env.UserWith(t, roles...))
	h.cfg.Half, h.cfg.Control, h.cfg.Target, h.cfg.Namespace = which, access, access, h.env.Namespace
	h.cfg.ConcurrentSyncs, h.cfg.Log = 5, testr.New(t)
	h.cfg.Election = Election{Enabled: true, LeaseDuration: time.Hour, RenewDeadline: 50 * time.Minute, RetryPeriod: 100 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, h.cfg) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager returned %v", err)
		}
	})
	t.Cleanup(h.stop)
	for _, object := range onePool(h.env.Namespace) {
		if err := h.env.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// machines lists the machines.
func (h *half) machines(g gomega.Gomega) []v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	g.Expect(h.env.Client.List(h.Context(), list, client.InNamespace(h.env.Namespace))).To(gomega.Succeed())
	return list.Items
}

// wantSources waits for events, and checks that their sources are those of MCM.
func (h *half) wantSources(want map[string]string) {
	gomega.NewWithT(h).Eventually(func(g gomega.Gomega) {
		list, got := &corev1.EventList{}, map[string]string{}
		g.Expect(h.env.Client.List(h.Context(), list, client.InNamespace(h.env.Namespace))).To(gomega.Succeed())
		for _, event := range list.Items {
			if want[event.Reason] != "" {
				got[event.Reason] = event.Source.Component
			}
		}
		g.Expect(got).To(gomega.Equal(want))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
}

// TestHalf_MachineSets checks that this half creates the machines of a deployment without the permissions and the driver
// of the other half, and does nothing else with them.
func TestHalf_MachineSets(t *testing.T) {
	h := startHalf(t, HalfSets, Config{}, "config/rbac/machine-controller-manager-role.yaml", "config/rbac/machine-controller-manager-target-role.yaml")
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		deployment := &v1alpha1.MachineDeployment{}
		g.Expect(h.env.Client.Get(t.Context(), client.ObjectKey{Namespace: h.env.Namespace, Name: "one"}, deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.Replicas).To(gomega.BeEquivalentTo(2))
		g.Expect(deployment.Status.Selector).To(gomega.Equal("name=one"))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	h.wantSources(map[string]string{"ScalingMachineSet": "machine-controller-manager", "SuccessfulCreate": "machineset-controller"})
	if got := [2]string{h.holder(both[0]), h.holder(both[1])}; got[0] != "none" || got[1] == "none" {
		t.Errorf("the leases are held by %q", got)
	}
	h.stop()
	for _, machine := range h.machines(gomega.NewWithT(t)) {
		if phase := machine.Status.CurrentStatus.Phase; phase != "" {
			t.Errorf("%s is %s", machine.Name, phase)
		}
	}
	h.forbidden.want(t)
}

// TestHalf_Machines checks that this half creates the VM of a machine without the permissions of the other half,
// and does nothing with a deployment.
func TestHalf_Machines(t *testing.T) {
	cfg := Config{Drivers: registry.Only("sim", sim.New(sim.Config{})), Settings: Settings{MachineSettings: MachineSettings{CreationTimeout: time.Minute}}}
	h := startHalf(t, HalfMachines, cfg, "config/rbac/machine-controller-role.yaml", "config/rbac/target-role.yaml")
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		machines := h.machines(g)
		g.Expect(machines).To(gomega.HaveLen(1))
		g.Expect(machines[0].Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachinePending))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	if got := [2]string{h.holder(both[0]), h.holder(both[1])}; got[0] == "none" || got[1] != "none" {
		t.Errorf("the leases are held by %q", got)
	}
	h.stop()
	deployment := &v1alpha1.MachineDeployment{}
	if err := h.env.Client.Get(t.Context(), client.ObjectKey{Namespace: h.env.Namespace, Name: "one"}, deployment); err != nil {
		t.Fatal(err)
	}
	if len(deployment.Finalizers) > 0 || deployment.Status.ObservedGeneration != 0 {
		t.Errorf("the deployment has the finalizers %q and the status %+v", deployment.Finalizers, deployment.Status)
	}
	h.forbidden.want(t)
}
