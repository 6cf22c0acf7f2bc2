package capi

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
	"github.com/millwright-dev/millwright/test/support/coretest"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

var versions = []schema.GroupVersion{core.V1Beta1, core.V1Beta2}

// newServerHarness is like newHarness, but uses a real API server with resource versions, generations, finalizers,
// schemas, and status subresources.
func newServerHarness(t *testing.T, version schema.GroupVersion) *harness {
	t.Helper()
	e := env.New(t)
	coretest.Install(t, e.Admin)
	c, err := client.NewWithWatch(e.Admin, client.Options{Scheme: newScheme(version)})
	if err != nil {
		t.Fatal(err)
	}
	h := newHarnessOf(t, testingclock.NewFakeClock(time.Now()), e.Namespace, c)
	h.create(newServerGiven(h.Key.Namespace).objects()...)
	return h
}

// newServerGiven returns objects that an API server accepts from users.
func newServerGiven(namespace string) *given {
	g := newGiven(namespace, time.Time{})
	g.machine.Spec.FailureDomain = "b"
	g.infra.Spec.FailureDomains = []infrav1.Placement{{Name: "b", ProviderSpec: raw(`{"zone":"zone-b"}`)}}
	return g
}

// TestMachine_LifecycleOnServer checks the life of a VM from creation to deletion with both versions of Cluster API's kinds.
func TestMachine_LifecycleOnServer(t *testing.T) {
	for _, version := range versions {
		t.Run(version.Version, func(t *testing.T) {
			h := newServerHarness(t, version)
			h.Settle()
			got := h.infra()
			h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
			if got.Spec.ProviderID != "test:///vm-1" || got.Spec.FailureDomain != "b" || !got.Status.Ready || !*got.Status.Initialization.Provisioned {
				t.Errorf("spec %+v, status %+v", got.Spec, got.Status)
			}
			if spec := string(h.created()[0].MachineClass.ProviderSpec.Raw); spec != `{"size":"small","zone":"zone-b"}` {
				t.Errorf("providerSpec %s", spec)
			}
			h.Writes = nil
			h.SettleAfter(time.Minute)
			if len(h.Writes) != 0 {
				t.Errorf("writes without a change: %v", h.Writes)
			}
			h.delete()
			h.Settle()
			if !h.gone() || len(h.Driver.VMs()) != 0 {
				t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
			}
		})
	}
}

// TestMachine_FieldsOfVMAreImmutable checks that the fields that identify the VM at its provider cannot be changed after the
// creation. Other fields can, and clusterctl can move the object. The webhook checks the fields that can only be
// updated in place.
func TestMachine_FieldsOfVMAreImmutable(t *testing.T) {
	h := newServerHarness(t, core.V1Beta2)
	h.changeInfra(func(m *infrav1.MillwrightMachine) {
		m.Spec.ProviderSpec = raw(`{"size":"small","disk":{"gib":[1,2]},"tags":{"a":"b"}}`)
		m.Spec.CredentialsSecretRef = &infrav1.LocalReference{Name: "cloud"}
		m.Spec.FailureDomains = append(m.Spec.FailureDomains, infrav1.Placement{Name: "c", ProviderSpec: raw(`{"zone":"zone-c"}`)})
	})
	h.create(secret(h.Key.Namespace, "cloud", nil))
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	for name, edit := range map[string]func(*infrav1.MillwrightMachineSpec){
		"driver":               func(s *infrav1.MillwrightMachineSpec) { s.Driver = "other" },
		"credentials":          func(s *infrav1.MillwrightMachineSpec) { s.CredentialsSecretRef.Name = "other" },
		"no credentials":       func(s *infrav1.MillwrightMachineSpec) { s.CredentialsSecretRef = nil },
		"no failure domains":   func(s *infrav1.MillwrightMachineSpec) { s.FailureDomains = nil },
		"failure domain name":  func(s *infrav1.MillwrightMachineSpec) { s.FailureDomains[1].Name = "d" },
		"failure domain patch": func(s *infrav1.MillwrightMachineSpec) { s.FailureDomains[1].ProviderSpec = raw(`{"zone":"d"}`) },
	} {
		infra := h.infra()
		edit(&infra.Spec)
		if err := h.client.Update(t.Context(), infra); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "once the VM exists") {
			t.Errorf("%s: err = %v, want Invalid", name, err)
		}
	}
	h.changeInfra(func(m *infrav1.MillwrightMachine) {
		m.Labels["a"] = "b"
		m.Spec.NodeTemplate = &infrav1.NodeTemplate{InstanceType: "x"}
		m.Spec.ProviderSpec = raw(`{"tags":{"a":"b"}, "disk":{"gib":[1,2]}, "size":"small"}`) // equal, but in another order
	})
	moved := h.infra()
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Finalizers = nil })
	h.remove(h.infra())
	moved.UID, moved.ResourceVersion = "", ""
	h.create(moved)
	h.restart()
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.delete()
	h.Settle()
	if !h.gone() || len(h.Driver.VMs()) != 0 || h.made != 1 {
		t.Errorf("gone %t, VMs %v of %d", h.gone(), h.Driver.VMs(), h.made)
	}
}

// TestDeletion_SpecChangedWithoutWebhook checks that a deletion is blocked when the VM is not found after a change of the
// provider specification, which the API server accepts without the webhook.
func TestDeletion_SpecChangedWithoutWebhook(t *testing.T) {
	h := newServerHarness(t, core.V1Beta2)
	h.matchSpec(true)
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec = raw(`{"colour":"red"}`) })
	h.delete()
	h.Settle()
	h.wantReady(metav1.ConditionFalse, infrav1.ReasonSpecChanged, "cannot be deleted")
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Spec.ProviderSpec = raw(`{"size":"small"}`) })
	h.SettleAfter(time.Minute)
	if !h.gone() || len(h.Driver.VMs()) != 0 {
		t.Errorf("gone %t, VMs %v", h.gone(), h.Driver.VMs())
	}
}

// TestMachine_KeepsMetadataOfOthers checks that metadata that others write at the same time are not lost (O2).
func TestMachine_KeepsMetadataOfOthers(t *testing.T) {
	h := newServerHarness(t, core.V1Beta2)
	interfered := 0
	h.Refuse = func(lockstep.Write) error {
		if interfered++; interfered <= 3 {
			h.changeInfra(func(m *infrav1.MillwrightMachine) {
				metav1.SetMetaDataLabel(&m.ObjectMeta, "pool", string(rune('a'+interfered)))
				m.Finalizers = append(m.Finalizers, "example.com/"+string(rune('a'+interfered)))
			})
		}
		return nil
	}
	h.Settle()
	h.wantReady(metav1.ConditionTrue, infrav1.ReasonProvisioned)
	got := h.infra()
	if got.Labels["pool"] != "d" || len(got.Finalizers) != 4 || h.made != 1 {
		t.Errorf("labels %v, finalizers %v, %d VMs", got.Labels, got.Finalizers, h.made)
	}
}

// TestRole_GrantsRequiredPermissions runs the controller with watches, caches, and only the permissions of its role.
func TestRole_GrantsRequiredPermissions(t *testing.T) {
	e := env.New(t)
	coretest.Install(t, e.Admin)
	scheme := newScheme(core.V1Beta2)
	admin, err := client.New(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	g := newServerGiven(e.Namespace)
	g.cluster.Status = core.ClusterStatus{}
	machine, cluster := g.machine, g.cluster
	for _, object := range g.objects() {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	d := newDriver(new(0))
	run(t, e, newScheme(core.V1Beta2), d)
	expect := gomega.NewWithT(t)
	reason := func(kind string) func() string {
		return func() string {
			infra := &infrav1.MillwrightMachine{}
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(g.infra), infra); err != nil {
				return err.Error()
			}
			if condition := meta.FindStatusCondition(infra.Status.Conditions, kind); condition != nil {
				return condition.Reason
			}
			return ""
		}
	}
	await := func(kind, want string) {
		t.Helper()
		expect.Eventually(reason(kind)).WithTimeout(env.WaitTimeout).Should(gomega.Equal(want))
	}
	await(infrav1.ConditionReady, infrav1.ReasonWaitingForClusterInfrastructure)
	cluster.Status.Initialization.InfrastructureProvisioned = true
	if err := admin.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	await(infrav1.ConditionReady, infrav1.ReasonProvisioned)
	machine.Status.NodeRef = &core.Reference{Name: "node"}
	if err := admin.Update(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	await(infrav1.ConditionNodeJoined, infrav1.ReasonJoined)
	if err := admin.Delete(t.Context(), g.infra); err != nil {
		t.Fatal(err)
	}
	expect.Eventually(func() bool {
		return apierrors.IsNotFound(admin.Get(t.Context(), client.ObjectKeyFromObject(g.infra), &infrav1.MillwrightMachine{}))
	}).WithTimeout(env.WaitTimeout).Should(gomega.BeTrue())
	if len(d.VMs()) != 0 {
		t.Errorf("VMs %v", d.VMs())
	}
}

// run runs a controller until the test is over.
func run(t *testing.T, e *env.Env, scheme *runtime.Scheme, d driver.Driver) {
	t.Helper()
	access := e.UserWith(t, "config/rbac/capi-role.yaml")
	mgr, err := ctrl.NewManager(access, ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cache.Options{DefaultNamespaces: map[string]cache.Config{e.Namespace: {}}},
		Controller:             config.Controller{SkipNameValidation: new(true), UsePriorityQueue: new(false)},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // t.Context is canceled before the cleanup
	stopped := make(chan error, 1)
	waker := &tasks.Waker{}
	engine := instance.New(d, instance.Options{
		Run:  func(task func(context.Context)) bool { go task(ctx); return true },
		Wake: waker.Wake,
	})
	controller := New(Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Engine: engine, TaskEvents: waker,
		Events: record.NewFakeRecorder(100), Clock: clock.RealClock{}, Drivers: registry.Only("test", fake.New(fake.Config{})),
	})
	if err := controller.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	go func() { stopped <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("the manager failed: %v", err)
		}
	})
}

// TestDiscover_UsesNewestVersion checks that the newest version of Cluster API that the server serves is used.
func TestDiscover_UsesNewestVersion(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	coretest.Install(t, e.Admin)
	dc, err := discovery.NewDiscoveryClientForConfig(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	got, err := core.Discover(dc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(core.V1Beta2, got); diff != "" {
		t.Errorf("version (-want +got):\n%s", diff)
	}
}
