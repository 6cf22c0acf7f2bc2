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

// lister is a driver with these failure domains.
type lister struct {
	names []string
	err   error
	asked []*driver.ListFailureDomainsRequest
}

func (o *lister) ListFailureDomains(_ context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	o.asked = append(o.asked, req)
	if o.err != nil {
		return nil, o.err
	}
	resp := &driver.ListFailureDomainsResponse{}
	for _, name := range o.names {
		resp.FailureDomains = append(resp.FailureDomains, driver.FailureDomain{Name: name, Attributes: map[string]string{"of": "driver", "\xff": "key", "value": "\xff"}})
	}
	return resp, nil
}

func (o *lister) PlaceMachine(context.Context, *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	panic("no machine is placed here")
}

// harness is a MillwrightCluster whose driver lists failure domains. Reconciles and calls are taken
// in turn by settle.
type harness struct {
	*testing.T
	client     client.WithWatch
	clock      *testingclock.FakeClock
	lister     *lister
	controller *Controller
	tasks      []func(context.Context)
	woken      int
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
		T: t, clock: testingclock.NewFakeClock(born), lister: &lister{names: []string{"b", "a"}}, key: client.ObjectKeyFromObject(g.infra),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&infrav1.MillwrightCluster{}).Build(),
	}
	h.restart(h.lister)
	return h
}

// restart ends the manager and starts another one, whose driver may be nil.
func (h *harness) restart(placer driver.FailureDomains) {
	h.tasks = nil
	drivers := registryOf(placer)
	if placer == nil {
		drivers = registry.Only("test", struct{ driver.Driver }{})
	}
	h.controller = New(Options{
		Client: h.client, Live: h.client, Clock: h.clock, FailureDomains: true, Drivers: drivers,
		Run: func(task func(context.Context)) bool {
			h.tasks = append(h.tasks, task)
			return true
		},
		Wake: func(of types.NamespacedName) {
			if of == h.key {
				h.woken++
			}
		},
	})
}

// registryOf returns the drivers of a manager that has only this one.
func registryOf(placer driver.FailureDomains) *registry.Registry {
	return registry.Only("test", struct {
		driver.Driver
		driver.FailureDomains
	}{nil, placer})
}

// pass takes one pass, and answers when the next one is to come at the latest.
func (h *harness) pass() time.Duration {
	h.Helper()
	result, err := h.controller.Reconcile(h.Context(), ctrl.Request{NamespacedName: h.key})
	if err != nil {
		h.Fatal(err)
	}
	return result.RequeueAfter
}

// settle takes passes and makes calls until nothing more happens.
func (h *harness) settle() time.Duration {
	h.Helper()
	for range 10 {
		before, waiting := h.infra().ResourceVersion, len(h.tasks)
		after := h.pass()
		if len(h.tasks) == 0 && waiting == 0 && h.infra().ResourceVersion == before {
			return after
		}
		h.call()
	}
	h.Fatal("it never comes to rest")
	return 0
}

// call makes the calls that wait.
func (h *harness) call() {
	waiting := h.tasks
	h.tasks = nil
	for _, task := range waiting {
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

// wantDomains checks their names, in order.
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

// wantKnown checks the condition, and that nothing else suffers.
func (h *harness) wantKnown(value metav1.ConditionStatus, reason string, says ...string) {
	h.Helper()
	infra := h.infra()
	got := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionFailureDomainsKnown)
	if got == nil || got.Status != value || got.Reason != reason {
		h.Fatalf("the condition is %+v, want %s %s", got, value, reason)
	}
	for _, words := range says {
		if !strings.Contains(got.Message, words) {
			h.Errorf("it says %q, want %q in it", got.Message, words)
		}
	}
	if !infra.Status.Ready || !meta.IsStatusConditionTrue(infra.Status.Conditions, infrav1.ConditionReady) ||
		!meta.IsStatusConditionTrue(infra.Status.Conditions, infrav1.ConditionControlPlaneEndpointKnown) {
		h.Errorf("the rest of the status is %+v", infra.Status)
	}
}

// TestDriverIsCalled: it is ready before there is an answer, and the answer is all there is to
// write. What the user declares counts more.
func TestDriverIsCalled(t *testing.T) {
	h := newHarness(t, func(g *given) {
		g.infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}, {Name: "b", ControlPlane: new(false)}}
		g.infra.Spec.FailureDomainsFrom.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"pool":"p"}`)}
	})
	h.pass()
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
	if h.woken != 1 || len(h.lister.asked) != 1 {
		t.Fatalf("woken %d times, asked %d times", h.woken, len(h.lister.asked))
	}
	class := h.lister.asked[0].MachineClass
	if string(class.ProviderSpec.Raw) != `{"pool":"p"}` || class.Namespace != "ns" || driver.APIGroup(class) != driver.APIGroupClusterAPI || h.lister.asked[0].Secret == nil {
		t.Errorf("asked with %+v", h.lister.asked[0])
	}
}

// TestDriverIsCalledAgain: every few minutes, and not with each reconcile.
func TestDriverIsCalledAgain(t *testing.T) {
	h := newHarness(t)
	after := h.settle()
	if after < listEvery || after > listEvery*11/10 {
		t.Errorf("asked again after %s", after)
	}
	h.lister.names = []string{"c"}
	h.clock.Step(listEvery - time.Second)
	if h.settle(); len(h.lister.asked) != 1 {
		t.Errorf("asked %d times", len(h.lister.asked))
	}
	h.wantDomains("a", "b")
	h.clock.Step(after)
	h.pass()
	h.wantDomains("a", "b") // while it is asked
	h.settle()
	h.wantDomains("c")

	version := h.infra().ResourceVersion
	h.clock.Step(2 * listEvery)
	if h.settle(); len(h.lister.asked) != 3 || h.infra().ResourceVersion != version {
		t.Errorf("asked %d times, and wrote without a change: %v", len(h.lister.asked), h.infra().ResourceVersion != version)
	}
}

// TestFailureDomainsCallFails: the last failure domains stay, also after a restart, and the status says why there
// are no newer ones.
func TestFailureDomainsCallFails(t *testing.T) {
	for name, tc := range map[string]struct {
		err    error
		reason string
		says   string
		again  time.Duration
	}{
		"away":     {status.Error(codes.Unavailable, "no answer"), infrav1.ReasonDriverCallFailed, "no answer (Unavailable)", listSoon},
		"no code":  {context.DeadlineExceeded, infrav1.ReasonDriverCallFailed, "deadline", listSoon},
		"no right": {status.Error(codes.PermissionDenied, "nodes is forbidden"), infrav1.ReasonDriverCallFailed, "forbidden", listEvery},
		"binary":   {status.Error(codes.Internal, "a\x1b[2J\u009bb"), infrav1.ReasonDriverCallFailed, "a [2J b", listEvery},
		"long":     {status.Error(codes.Internal, strings.Repeat("ä", 40_000)), infrav1.ReasonDriverCallFailed, messages.Cut, listEvery},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.settle()
			h.lister.err = tc.err
			h.clock.Step(2 * listEvery)
			after := h.settle()
			h.wantKnown(metav1.ConditionFalse, tc.reason, tc.says)
			h.wantDomains("a", "b")
			if after < tc.again || after > tc.again*11/10 {
				t.Errorf("asked again after %s, want %s", after, tc.again)
			}

			h.restart(h.lister)
			h.change(func(infra *infrav1.MillwrightCluster) {
				infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}}
			})
			h.settle()
			h.wantKnown(metav1.ConditionFalse, tc.reason)
			h.wantDomains("z", "a", "b")

			h.lister.err = nil
			h.clock.Step(2 * listEvery)
			h.settle()
			h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
		})
	}
}

// TestADriverThatHasReturned: after a failed call it is asked again at once, and not after another answer.
func TestADriverThatHasReturned(t *testing.T) {
	h := newHarness(t)
	h.lister.err = status.Error(codes.Unavailable, "not connected")
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonDriverCallFailed)
	h.lister.err = nil
	for range 2 {
		if got := h.controller.ofDriver(t.Context(), "test"); len(got) != 1 {
			t.Errorf("its return wakes %v", got)
		}
		h.settle()
	}
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	if len(h.lister.asked) != 2 {
		t.Errorf("asked %d times", len(h.lister.asked))
	}
}

// TestNotSupported: by the driver, or by Cluster API.
func TestNotSupported(t *testing.T) {
	h := newHarness(t)
	h.settle()
	h.lister.err = status.Error(codes.Unimplemented, "no")
	h.clock.Step(2 * listEvery)
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonNotSupported)
	h.wantDomains()

	h = newHarness(t)
	h.restart(nil)
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonNotSupported)

	h = newHarness(t)
	h.controller.FailureDomains = false
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonNotSupported, "v1.11")
	if len(h.lister.asked) != 0 {
		t.Error("the driver was called although Cluster API cannot read the result")
	}
}

// TestSourceChanges: another question is asked at once, and the answer to the former one is
// of no use any more.
func TestSourceChanges(t *testing.T) {
	h := newHarness(t)
	h.pass()
	former := h.tasks
	h.tasks = nil
	h.change(func(infra *infrav1.MillwrightCluster) {
		infra.Spec.FailureDomainsFrom.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"pool":"q"}`)}
	})
	h.lister.names = []string{"q"}
	h.settle()
	h.wantDomains("q")
	h.lister.names = []string{"late"}
	former[0](t.Context())
	h.settle()
	h.wantDomains("q")

	h.change(func(infra *infrav1.MillwrightCluster) {
		infra.Spec.FailureDomainsFrom, infra.Spec.FailureDomains = nil, []infrav1.FailureDomain{{Name: "z"}}
	})
	if after := h.settle(); after != 0 {
		t.Errorf("the next pass is in %s", after)
	}
	h.wantDomains("z")
	if reason := reasonOf(h.infra(), infrav1.ConditionFailureDomainsKnown); reason != "" {
		t.Errorf("the condition is still there: %s", reason)
	}
}

// TestDriverIsNotCalled: paused, or on its way out.
func TestDriverIsNotCalled(t *testing.T) {
	for name, change := range map[string]func(*given){
		"paused": func(g *given) { g.cluster.Spec.Paused = true },
		"being deleted": func(g *given) {
			g.infra.Finalizers, g.infra.DeletionTimestamp = []string{"cluster.x-k8s.io/test"}, &metav1.Time{Time: born}
		},
		"without owner": func(g *given) { g.infra.OwnerReferences = nil },
	} {
		h := newHarness(t, change)
		if h.settle(); len(h.lister.asked) != 0 {
			t.Errorf("%s: asked %d times", name, len(h.lister.asked))
		}
	}
}

// TestCallIsCancelled: a call that is under way is cancelled when its object goes.
func TestCallIsCancelled(t *testing.T) {
	h := newHarness(t)
	h.pass()
	infra := h.infra()
	if err := h.client.Delete(t.Context(), infra); err != nil {
		t.Fatal(err)
	}
	h.pass()
	cancelled := false
	h.controller.Drivers = registryOf(driverFunc(func(ctx context.Context) { cancelled = ctx.Err() != nil }))
	h.call()
	if remembered := h.controller.memory.Find(client.ObjectKeyFromObject(infra)); !cancelled || remembered != nil {
		t.Errorf("canceled: %t, remembered: %v", cancelled, remembered)
	}
}

// driverFunc looks at the context of a call.
type driverFunc func(context.Context)

func (f driverFunc) ListFailureDomains(ctx context.Context, _ *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	f(ctx)
	return &driver.ListFailureDomainsResponse{}, nil
}

func (f driverFunc) PlaceMachine(context.Context, *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	panic("no machine is placed here")
}

// TestClassAndSecrets: what is missing is named, and its coming helps.
func TestClassAndSecrets(t *testing.T) {
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
		t.Errorf("the class wakes %v", got)
	}
	if got := h.controller.ofClass(t.Context(), &v1alpha1.MachineClass{ObjectMeta: named("large")}); len(got) != 0 {
		t.Errorf("another class wakes %v", got)
	}
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonMachineClassMissing, "cloud")

	h.create(&corev1.Secret{ObjectMeta: named("cloud"), Data: map[string][]byte{"a": []byte("class"), "b": []byte("class"), "userData": []byte("no")}})
	h.clock.Step(2 * listSoon)
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonCredentialsMissing, `"own"`)

	h.create(&corev1.Secret{ObjectMeta: named("own"), Data: map[string][]byte{"b": []byte("own")}})
	h.clock.Step(2 * listSoon)
	h.settle()
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	asked := h.lister.asked[0]
	want := map[string][]byte{"a": []byte("class"), "b": []byte("own")}
	if diff := cmp.Diff(want, asked.Secret.Data); diff != "" || string(asked.MachineClass.ProviderSpec.Raw) != `{"pool":"p"}` {
		t.Errorf("asked with %s, and (-want +got):\n%s", asked.MachineClass.ProviderSpec.Raw, diff)
	}

	class.Generation, class.ProviderSpec.Raw = 2, []byte(`{"pool":"q"}`)
	if err := h.client.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	h.settle()
	if last := h.lister.asked[len(h.lister.asked)-1]; len(h.lister.asked) != 2 || string(last.MachineClass.ProviderSpec.Raw) != `{"pool":"q"}` {
		t.Errorf("asked %d times, last with %s", len(h.lister.asked), last.MachineClass.ProviderSpec.Raw)
	}

	h.change(func(infra *infrav1.MillwrightCluster) { infra.Spec.FailureDomainsFrom.Driver = "other" })
	h.settle()
	h.wantKnown(metav1.ConditionFalse, infrav1.ReasonUnknownDriver, `"other"`)
	h.wantDomains("a", "b")
}

// TestInvalidFailureDomains: whatever a driver says, the status can be written.
func TestInvalidFailureDomains(t *testing.T) {
	h := newHarness(t, func(g *given) { g.infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}} })
	h.lister.names = []string{"a", "", "a", strings.Repeat("x", 257), "\x1b[2Jb", "c\u009b5n", "d\u202e", "e\n", "f\xff"}
	h.settle()
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	h.wantDomains("z", "a")

	h.lister.names = nil
	for i := range 150 {
		h.lister.names = append(h.lister.names, fmt.Sprintf("d%03d", i))
	}
	h.clock.Step(2 * listEvery)
	h.settle()
	h.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported, "51 of the driver's")
	if got := h.infra().Status.FailureDomains; len(got) != mostDomains || got[0].Name != "z" || got[99].Name != "d098" {
		t.Errorf("%d failure domains: %v", len(got), got)
	}
}
