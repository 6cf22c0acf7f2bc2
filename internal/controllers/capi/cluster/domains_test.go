package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// lister is a driver that returns these failure domains.
type lister struct {
	names    []string
	err      error
	requests []*driver.ListFailureDomainsRequest
}

func (l *lister) ListFailureDomains(_ context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	l.requests = append(l.requests, req)
	if l.err != nil {
		return nil, l.err
	}
	resp := &driver.ListFailureDomainsResponse{}
	for _, name := range l.names {
		resp.FailureDomains = append(resp.FailureDomains, driver.FailureDomain{Name: name, Attributes: map[string]string{"of": "driver", "\xff": "key", "value": "\xff"}})
	}
	return resp, nil
}

func (l *lister) PlaceMachine(context.Context, *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	panic("unexpected call of PlaceMachine")
}

// harness is a MillwrightCluster whose driver lists failure domains. Method settle alternates reconciles and calls of
// the driver.
type harness struct {
	*testing.T
	client     client.WithWatch
	clock      *testingclock.FakeClock
	lister     *lister
	controller *Controller
	tasks      []func(context.Context)
	wakeups    int
	key        types.NamespacedName
}

func newHarness(t *testing.T, changes ...func(*given)) *harness {
	t.Helper()
	g := newGiven()
	g.infra.Spec.FailureDomainsFrom = &infrav1.FailureDomainSource{Driver: "test"}
	for _, change := range changes {
		change(g)
	}
	scheme := runtime.NewScheme()
	core.AddToScheme(scheme, core.V1Beta2)
	for _, add := range []func(*runtime.Scheme) error{infrav1.AddToScheme, v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	objects := []client.Object{g.infra, g.cluster}
	for _, machine := range g.machines {
		objects = append(objects, machine)
	}
	h := &harness{
		T: t, clock: testingclock.NewFakeClock(startTime), lister: &lister{names: []string{"b", "a"}}, key: client.ObjectKeyFromObject(g.infra),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&infrav1.MillwrightCluster{}).Build(),
	}
	h.restart(h.lister)
	return h
}

// restart replaces the controller by a new one, as a restart of the manager does. A nil placer means that the driver
// does not support failure domains.
func (h *harness) restart(placer driver.FailureDomains) {
	h.tasks = nil
	drivers := registryOf(placer)
	if placer == nil {
		drivers = registry.Only("test", struct{ driver.Driver }{})
	}
	h.controller = New(Options{
		Client: h.client, Live: h.client, Clock: h.clock, Drivers: drivers,
		Run: func(task func(context.Context)) bool {
			h.tasks = append(h.tasks, task)
			return true
		},
		Wake: func(key types.NamespacedName) {
			if key == h.key {
				h.wakeups++
			}
		},
	})
}

// registryOf returns a registry with only this driver.
func registryOf(placer driver.FailureDomains) *registry.Registry {
	return registry.Only("test", struct {
		driver.Driver
		driver.FailureDomains
	}{nil, placer})
}

// reconcile reconciles the object once, and returns the time until the next reconcile.
func (h *harness) reconcile() time.Duration {
	h.Helper()
	result, err := h.controller.Reconcile(h.Context(), ctrl.Request{NamespacedName: h.key})
	if err != nil {
		h.Fatal(err)
	}
	return result.RequeueAfter
}

// settle alternates reconciles and calls until nothing changes, and returns the time until the next reconcile.
func (h *harness) settle() time.Duration {
	h.Helper()
	for range 10 {
		before, pending := h.infra().ResourceVersion, len(h.tasks)
		after := h.reconcile()
		if len(h.tasks) == 0 && pending == 0 && h.infra().ResourceVersion == before {
			return after
		}
		h.call()
	}
	h.Fatal("every reconcile makes a change")
	return 0
}

// call makes the pending calls.
func (h *harness) call() {
	pending := h.tasks
	h.tasks = nil
	for _, task := range pending {
		task(h.Context())
	}
}

func (h *harness) infra() *infrav1.MillwrightCluster {
	h.Helper()
	infra := &infrav1.MillwrightCluster{}
	if err := h.client.Get(h.Context(), h.key, infra); err != nil {
		h.Fatal(err)
	}
	return infra
}

func (h *harness) change(edit func(*infrav1.MillwrightCluster)) {
	h.Helper()
	infra := h.infra()
	edit(infra)
	if err := h.client.Update(h.Context(), infra); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) create(object client.Object) {
	h.Helper()
	if err := h.client.Create(h.Context(), object); err != nil {
		h.Fatal(err)
	}
}

// wantDomains checks the names and their order.
func (h *harness) wantDomains(names ...string) {
	h.Helper()
	var got []string
	for _, domain := range h.infra().Status.FailureDomains {
		got = append(got, domain.Name)
	}
	if diff := cmp.Diff(names, got); diff != "" {
		h.Errorf("failure domains (-want +got):\n%s", diff)
	}
}

// wantKnown checks the condition, and that the others are still true.
func (h *harness) wantKnown(status metav1.ConditionStatus, reason string, want ...string) {
	h.Helper()
	infra := h.infra()
	got := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionFailureDomainsKnown)
	if got == nil || got.Status != status || got.Reason != reason {
		h.Fatalf("the condition is %+v, want %s %s", got, status, reason)
	}
	for _, text := range want {
		if !strings.Contains(got.Message, text) {
			h.Errorf("the message is %q, want %q in it", got.Message, text)
		}
	}
	if !infra.Status.Ready || !meta.IsStatusConditionTrue(infra.Status.Conditions, infrav1.ConditionReady) ||
		!meta.IsStatusConditionTrue(infra.Status.Conditions, infrav1.ConditionControlPlaneEndpointKnown) {
		h.Errorf("status %+v", infra.Status)
	}
}

// TestFailureDomains_DriverIsCalled checks that the object is ready before the driver responds, and that declared failure domains
// take precedence over those of the driver.
func TestFailureDomains_DriverIsCalled(t *testing.T) {
	h := newHarness(t, func(g *given) {
		g.infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}, {Name: "b", ControlPlane: new(false)}}
		g.infra.Spec.FailureDomainsFrom.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"pool":"p"}`)}
	})
	h.reconcile()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonWaitingForDriver)
	h.wantDomains("z", "b")

	h.settle()
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	want := []infrav1.FailureDomain{
		{Name: "z"}, {Name: "b", ControlPlane: new(false)}, {Name: "a", ControlPlane: new(true), Attributes: map[string]string{"of": "driver"}},
	}
	if diff := cmp.Diff(want, h.infra().Status.FailureDomains); diff != "" {
		t.Errorf("failure domains (-want +got):\n%s", diff)
	}
	if h.wakeups != 1 || len(h.lister.requests) != 1 {
		t.Fatalf("%d wakeups, %d requests", h.wakeups, len(h.lister.requests))
	}
	class := h.lister.requests[0].MachineClass
	if string(class.ProviderSpec.Raw) != `{"pool":"p"}` || class.Namespace != "ns" || driver.APIGroup(class) != driver.APIGroupClusterAPI || h.lister.requests[0].Secret == nil {
		t.Errorf("request %+v", h.lister.requests[0])
	}
}

// TestFailureDomains_DriverIsCalledRegularly checks that the driver is called every few minutes, and not with each reconcile.
func TestFailureDomains_DriverIsCalledRegularly(t *testing.T) {
	h := newHarness(t)
	after := h.settle()
	if after < listInterval || after > listInterval*11/10 {
		t.Errorf("requeued after %s", after)
	}
	h.lister.names = []string{"c"}
	h.clock.Step(listInterval - time.Second)
	if h.settle(); len(h.lister.requests) != 1 {
		t.Errorf("%d requests", len(h.lister.requests))
	}
	h.wantDomains("a", "b")
	h.clock.Step(after)
	h.reconcile()
	h.wantDomains("a", "b") // during the call
	h.settle()
	h.wantDomains("c")

	version := h.infra().ResourceVersion
	h.clock.Step(2 * listInterval)
	if h.settle(); len(h.lister.requests) != 3 || h.infra().ResourceVersion != version {
		t.Errorf("%d requests, wrote without a change: %v", len(h.lister.requests), h.infra().ResourceVersion != version)
	}
}

// TestFailureDomains_CallFails checks that the last failure domains stay after a failed call and a restart, and that
// the condition reports the error.
func TestFailureDomains_CallFails(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		reason string
		want   string
		retry  time.Duration
	}{
		"unavailable":       {status.Error(codes.Unavailable, "timeout"), infrav1.ReasonDriverCallFailed, "timeout (Unavailable)", listRetryInterval},
		"no code":           {context.DeadlineExceeded, infrav1.ReasonDriverCallFailed, "deadline", listRetryInterval},
		"permission denied": {status.Error(codes.PermissionDenied, "nodes is forbidden"), infrav1.ReasonDriverCallFailed, "forbidden", listInterval},
		"binary":            {status.Error(codes.Internal, "a\x1b[2J\u009bb"), infrav1.ReasonDriverCallFailed, "a [2J b", listInterval},
		"long":              {status.Error(codes.Internal, strings.Repeat("ä", 40_000)), infrav1.ReasonDriverCallFailed, messages.Cut, listInterval},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.settle()
			h.lister.err = tc.err
			h.clock.Step(2 * listInterval)
			after := h.settle()
			h.wantKnown(metav1.ConditionFalse, tc.reason, tc.want)
			h.wantDomains("a", "b")
			if after < tc.retry || after > tc.retry*11/10 {
				t.Errorf("requeued after %s, want %s", after, tc.retry)
			}

			h.restart(h.lister)
			h.change(func(infra *infrav1.MillwrightCluster) {
				infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}}
			})
			h.settle()
			h.wantKnown(metav1.ConditionFalse, tc.reason)
			h.wantDomains("z", "a", "b")

			h.lister.err = nil
			h.clock.Step(2 * listInterval)
			h.settle()
			h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
		})
	}
}

// TestController_ReconcilesWhenDriverRegisters checks that a registered driver is called immediately if its last call failed, but not if it
// succeeded.
func TestController_ReconcilesWhenDriverRegisters(t *testing.T) {
	h := newHarness(t)
	h.lister.err = status.Error(codes.Unavailable, "not connected")
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonDriverCallFailed)
	h.lister.err = nil
	for range 2 {
		if got := h.controller.ofDriver(t.Context(), "test"); len(got) != 1 {
			t.Errorf("the driver triggers %v, want one object", got)
		}
		h.settle()
	}
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	if len(h.lister.requests) != 2 {
		t.Errorf("%d requests", len(h.lister.requests))
	}
}

// TestFailureDomains_NotSupported checks that the condition reports that the driver does not support failure domains.
func TestFailureDomains_NotSupported(t *testing.T) {
	h := newHarness(t)
	h.settle()
	h.lister.err = status.Error(codes.Unimplemented, "no")
	h.clock.Step(2 * listInterval)
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonNotSupported)
	h.wantDomains()

	h = newHarness(t)
	h.restart(nil)
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonNotSupported)
}

// TestFailureDomains_SourceChanges checks that the driver is called immediately when its request changes, and that the response to the
// earlier request is then ignored.
func TestFailureDomains_SourceChanges(t *testing.T) {
	h := newHarness(t)
	h.reconcile()
	earlier := h.tasks
	h.tasks = nil
	h.change(func(infra *infrav1.MillwrightCluster) {
		infra.Spec.FailureDomainsFrom.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"pool":"q"}`)}
	})
	h.lister.names = []string{"q"}
	h.settle()
	h.wantDomains("q")
	h.lister.names = []string{"late"}
	earlier[0](t.Context())
	h.settle()
	h.wantDomains("q")

	h.change(func(infra *infrav1.MillwrightCluster) {
		infra.Spec.FailureDomainsFrom, infra.Spec.FailureDomains = nil, []infrav1.FailureDomain{{Name: "z"}}
	})
	if after := h.settle(); after != 0 {
		t.Errorf("requeued after %s", after)
	}
	h.wantDomains("z")
	if reason := reasonOf(h.infra(), infrav1.ConditionFailureDomainsKnown); reason != "" {
		t.Errorf("the condition still exists: %s", reason)
	}
}

// TestFailureDomains_DriverIsNotCalled lists the objects for which the driver is not called.
func TestFailureDomains_DriverIsNotCalled(t *testing.T) {
	for name, change := range map[string]func(*given){
		"paused": func(g *given) { g.cluster.Spec.Paused = true },
		"deleting": func(g *given) {
			g.infra.Finalizers, g.infra.DeletionTimestamp = []string{"cluster.x-k8s.io/test"}, &metav1.Time{Time: startTime}
		},
		"no owner": func(g *given) { g.infra.OwnerReferences = nil },
	} {
		h := newHarness(t, change)
		if h.settle(); len(h.lister.requests) != 0 {
			t.Errorf("%s: %d requests", name, len(h.lister.requests))
		}
	}
}

// TestFailureDomains_CallIsCanceledByDeletion checks that a running call is canceled when its object is deleted.
func TestFailureDomains_CallIsCanceledByDeletion(t *testing.T) {
	h := newHarness(t)
	h.reconcile()
	infra := h.infra()
	if err := h.client.Delete(t.Context(), infra); err != nil {
		t.Fatal(err)
	}
	h.reconcile()
	canceled := false
	h.controller.Drivers = registryOf(driverFunc(func(ctx context.Context) { canceled = ctx.Err() != nil }))
	h.call()
	if state := h.controller.memory.Find(client.ObjectKeyFromObject(infra)); !canceled || state != nil {
		t.Errorf("canceled: %t, state: %v", canceled, state)
	}
}

// driverFunc is a driver that passes the context of a call to a function.
type driverFunc func(context.Context)

func (f driverFunc) ListFailureDomains(ctx context.Context, _ *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	f(ctx)
	return &driver.ListFailureDomainsResponse{}, nil
}

func (f driverFunc) PlaceMachine(context.Context, *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	panic("unexpected call of PlaceMachine")
}

// TestFailureDomains_MissingClassAndSecrets checks that the condition names missing objects, and that their creation triggers a new call.
func TestFailureDomains_MissingClassAndSecrets(t *testing.T) {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	h := newHarness(t, func(g *given) {
		g.infra.Spec.FailureDomainsFrom.MachineClassRef = &infrav1.LocalReference{Name: "small"}
		g.infra.Spec.FailureDomainsFrom.CredentialsSecretRef = &infrav1.LocalReference{Name: "own"}
	})
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonMachineClassMissing, `"small"`)

	class := &v1alpha1.MachineClass{ObjectMeta: named("small"), SecretRef: &corev1.SecretReference{Namespace: "ns", Name: "cloud"}}
	class.ProviderSpec.Raw = []byte(`{"pool":"p"}`)
	h.create(class)
	if got := h.controller.ofClass(t.Context(), class); len(got) != 1 || got[0].NamespacedName != h.key {
		t.Errorf("the class triggers %v", got)
	}
	if got := h.controller.ofClass(t.Context(), &v1alpha1.MachineClass{ObjectMeta: named("large")}); len(got) != 0 {
		t.Errorf("another class triggers %v", got)
	}
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonMachineClassMissing, "cloud")

	h.create(&corev1.Secret{ObjectMeta: named("cloud"), Data: map[string][]byte{"a": []byte("class"), "b": []byte("class"), "userData": []byte("no")}})
	h.clock.Step(2 * listRetryInterval)
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonCredentialsMissing, `"own"`)

	h.create(&corev1.Secret{ObjectMeta: named("own"), Data: map[string][]byte{"b": []byte("own")}})
	h.clock.Step(2 * listRetryInterval)
	h.settle()
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	request := h.lister.requests[0]
	want := map[string][]byte{"a": []byte("class"), "b": []byte("own")}
	if diff := cmp.Diff(want, request.Secret.Data); diff != "" || string(request.MachineClass.ProviderSpec.Raw) != `{"pool":"p"}` {
		t.Errorf("specification %s, Secret (-want +got):\n%s", request.MachineClass.ProviderSpec.Raw, diff)
	}

	class.Generation, class.ProviderSpec.Raw = 2, []byte(`{"pool":"q"}`)
	if err := h.client.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	h.settle()
	if last := h.lister.requests[len(h.lister.requests)-1]; len(h.lister.requests) != 2 || string(last.MachineClass.ProviderSpec.Raw) != `{"pool":"q"}` {
		t.Errorf("%d requests, the last with %s", len(h.lister.requests), last.MachineClass.ProviderSpec.Raw)
	}

	h.change(func(infra *infrav1.MillwrightCluster) { infra.Spec.FailureDomainsFrom.Driver = "other" })
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonUnknownDriver, `"other"`)
	h.wantDomains("a", "b")
}

// TestFailureDomains_Invalid checks that invalid or too many failure domains of a driver do not prevent the status
// update.
func TestFailureDomains_Invalid(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}} })
	h.lister.names = []string{"a", "", "a", strings.Repeat("x", 257), "\x1b[2Jb", "c\u009b5n", "d\u202e", "e\n", "f\xff"}
	h.settle()
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	h.wantDomains("z", "a")

	h.lister.names = nil
	for i := range 150 {
		h.lister.names = append(h.lister.names, fmt.Sprintf("d%03d", i))
	}
	h.clock.Step(2 * listInterval)
	h.settle()
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported, "51 of the driver's")
	if got := h.infra().Status.FailureDomains; len(got) != maxDomains || got[0].Name != "z" || got[99].Name != "d098" {
		t.Errorf("%d failure domains: %v", len(got), got)
	}
}
