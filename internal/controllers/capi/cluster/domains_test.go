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
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// oracle is a driver that tells the failure domains that it is told.
type oracle struct {
	names []string
	err   error
	asked []*driver.ListFailureDomainsRequest
}

func (o *oracle) ListFailureDomains(_ context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	o.asked = append(o.asked, req)
	if o.err != nil {
		return nil, o.err
	}
	resp := &driver.ListFailureDomainsResponse{}
	for _, name := range o.names {
		resp.FailureDomains = append(resp.FailureDomains, driver.FailureDomain{Name: name, Attributes: map[string]string{"of": "driver"}})
	}
	return resp, nil
}

func (o *oracle) PlaceMachine(*driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	panic("machines are nobody's concern here")
}

// world is a MillwrightCluster whose driver is to be asked. Passes and calls are taken in
// turn by settle.
type world struct {
	*testing.T
	client     client.WithWatch
	clock      *testingclock.FakeClock
	oracle     *oracle
	controller *Controller
	tasks      []func(context.Context)
	woken      int
	key        types.NamespacedName
}

func newWorld(t *testing.T, changes ...func(*given)) *world {
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
	w := &world{
		T: t, clock: testingclock.NewFakeClock(born), oracle: &oracle{names: []string{"b", "a"}}, key: client.ObjectKeyFromObject(g.infra),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(g.infra, g.cluster).WithStatusSubresource(&infrav1.MillwrightCluster{}).Build(),
	}
	w.restart(w.oracle)
	return w
}

// restart ends the manager and starts another one, whose driver may be nil.
func (w *world) restart(placer driver.FailureDomains) {
	w.tasks = nil
	w.controller = New(Options{
		Client: w.client, Live: w.client, Clock: w.clock, FailureDomains: true, Driver: placer, DriverName: "test",
		Run: func(task func(context.Context)) bool {
			w.tasks = append(w.tasks, task)
			return true
		},
		Wake: func(of types.NamespacedName) {
			if of == w.key {
				w.woken++
			}
		},
	})
}

// pass takes one pass, and answers when the next one is to come at the latest.
func (w *world) pass() time.Duration {
	w.Helper()
	result, err := w.controller.Reconcile(w.Context(), ctrl.Request{NamespacedName: w.key})
	if err != nil {
		w.Fatal(err)
	}
	return result.RequeueAfter
}

// settle takes passes and makes calls until nothing more happens.
func (w *world) settle() time.Duration {
	w.Helper()
	for range 10 {
		before, waiting := w.infra().ResourceVersion, len(w.tasks)
		after := w.pass()
		if len(w.tasks) == 0 && waiting == 0 && w.infra().ResourceVersion == before {
			return after
		}
		w.call()
	}
	w.Fatal("it never comes to rest")
	return 0
}

// call makes the calls that wait.
func (w *world) call() {
	waiting := w.tasks
	w.tasks = nil
	for _, task := range waiting {
		task(w.Context())
	}
}

func (w *world) infra() *infrav1.MillwrightCluster {
	w.Helper()
	infra := &infrav1.MillwrightCluster{}
	if err := w.client.Get(w.Context(), w.key, infra); err != nil {
		w.Fatal(err)
	}
	return infra
}

func (w *world) change(edit func(*infrav1.MillwrightCluster)) {
	w.Helper()
	infra := w.infra()
	edit(infra)
	if err := w.client.Update(w.Context(), infra); err != nil {
		w.Fatal(err)
	}
}

func (w *world) create(object client.Object) {
	w.Helper()
	if err := w.client.Create(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

// wantDomains checks their names, in order.
func (w *world) wantDomains(names ...string) {
	w.Helper()
	var got []string
	for _, domain := range w.infra().Status.FailureDomains {
		got = append(got, domain.Name)
	}
	if diff := cmp.Diff(names, got); diff != "" {
		w.Errorf("failure domains (-want +got):\n%s", diff)
	}
}

// wantKnown checks the condition, and that nothing else suffers.
func (w *world) wantKnown(value metav1.ConditionStatus, reason string, says ...string) {
	w.Helper()
	infra := w.infra()
	got := meta.FindStatusCondition(infra.Status.Conditions, infrav1.ConditionFailureDomainsKnown)
	if got == nil || got.Status != value || got.Reason != reason {
		w.Fatalf("the condition is %+v, want %s %s", got, value, reason)
	}
	for _, words := range says {
		if !strings.Contains(got.Message, words) {
			w.Errorf("it says %q, want %q in it", got.Message, words)
		}
	}
	if !infra.Status.Ready || !meta.IsStatusConditionTrue(infra.Status.Conditions, infrav1.ConditionReady) ||
		!meta.IsStatusConditionTrue(infra.Status.Conditions, infrav1.ConditionControlPlaneEndpointKnown) {
		w.Errorf("the rest of the status is %+v", infra.Status)
	}
}

// TestDriverIsAsked: it is ready before there is an answer, and the answer is all there is to
// write. What the user declares counts more.
func TestDriverIsAsked(t *testing.T) {
	w := newWorld(t, func(g *given) {
		g.infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}, {Name: "b", ControlPlane: new(false)}}
		g.infra.Spec.FailureDomainsFrom.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"pool":"p"}`)}
	})
	w.pass()
	w.wantKnown(metav1.ConditionFalse, infrav1.ReasonWaitingForDriver)
	w.wantDomains("z", "b")

	w.settle()
	w.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	want := []infrav1.FailureDomain{
		{Name: "z"}, {Name: "b", ControlPlane: new(false)}, {Name: "a", ControlPlane: new(true), Attributes: map[string]string{"of": "driver"}},
	}
	if diff := cmp.Diff(want, w.infra().Status.FailureDomains); diff != "" {
		t.Errorf("failure domains (-want +got):\n%s", diff)
	}
	if w.woken != 1 || len(w.oracle.asked) != 1 {
		t.Fatalf("woken %d times, asked %d times", w.woken, len(w.oracle.asked))
	}
	class := w.oracle.asked[0].MachineClass
	if string(class.ProviderSpec.Raw) != `{"pool":"p"}` || class.Namespace != "ns" || driver.APIGroup(class) != driver.APIGroupClusterAPI || w.oracle.asked[0].Secret == nil {
		t.Errorf("asked with %+v", w.oracle.asked[0])
	}
}

// TestAskedAgain: every few minutes, and not because somebody looks.
func TestAskedAgain(t *testing.T) {
	w := newWorld(t)
	after := w.settle()
	if after < listEvery || after > listEvery*11/10 {
		t.Errorf("asked again after %s", after)
	}
	w.oracle.names = []string{"c"}
	w.clock.Step(listEvery - time.Second)
	if w.settle(); len(w.oracle.asked) != 1 {
		t.Errorf("asked %d times", len(w.oracle.asked))
	}
	w.wantDomains("a", "b")
	w.clock.Step(after)
	w.pass()
	w.wantDomains("a", "b") // while it is asked
	w.settle()
	w.wantDomains("c")

	version := w.infra().ResourceVersion
	w.clock.Step(2 * listEvery)
	if w.settle(); len(w.oracle.asked) != 3 || w.infra().ResourceVersion != version {
		t.Errorf("asked %d times, and wrote without a change: %v", len(w.oracle.asked), w.infra().ResourceVersion != version)
	}
}

// TestFailureDomainsCallFails: what was told stays, also over a restart, and the status says why there is
// no more.
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
		"long":     {status.Error(codes.Internal, strings.Repeat("ä", 40_000)), infrav1.ReasonDriverCallFailed, messages.Cut, listEvery},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.settle()
			w.oracle.err = tc.err
			w.clock.Step(2 * listEvery)
			after := w.settle()
			w.wantKnown(metav1.ConditionFalse, tc.reason, tc.says)
			w.wantDomains("a", "b")
			if after < tc.again || after > tc.again*11/10 {
				t.Errorf("asked again after %s, want %s", after, tc.again)
			}

			w.restart(w.oracle)
			w.change(func(infra *infrav1.MillwrightCluster) {
				infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}}
			})
			w.settle()
			w.wantKnown(metav1.ConditionFalse, tc.reason)
			w.wantDomains("z", "a", "b")

			w.oracle.err = nil
			w.clock.Step(2 * listEvery)
			w.settle()
			w.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
		})
	}
}

// TestNotSupported: by the driver, or by Cluster API.
func TestNotSupported(t *testing.T) {
	w := newWorld(t)
	w.settle()
	w.oracle.err = status.Error(codes.Unimplemented, "no")
	w.clock.Step(2 * listEvery)
	w.settle()
	w.wantKnown(metav1.ConditionFalse, infrav1.ReasonNotSupported)
	w.wantDomains()

	w = newWorld(t)
	w.restart(nil)
	w.settle()
	w.wantKnown(metav1.ConditionFalse, infrav1.ReasonNotSupported)

	w = newWorld(t)
	w.controller.FailureDomains = false
	w.settle()
	w.wantKnown(metav1.ConditionFalse, infrav1.ReasonNotSupported, "v1.11")
	if len(w.oracle.asked) != 0 {
		t.Error("the driver was asked for what nobody reads")
	}
}

// TestSourceChanges: another question is asked at once, and the answer to the former one is
// of no use any more.
func TestSourceChanges(t *testing.T) {
	w := newWorld(t)
	w.pass()
	former := w.tasks
	w.tasks = nil
	w.change(func(infra *infrav1.MillwrightCluster) {
		infra.Spec.FailureDomainsFrom.ProviderSpec = &runtime.RawExtension{Raw: []byte(`{"pool":"q"}`)}
	})
	w.oracle.names = []string{"q"}
	w.settle()
	w.wantDomains("q")
	w.oracle.names = []string{"late"}
	former[0](t.Context())
	w.settle()
	w.wantDomains("q")

	w.change(func(infra *infrav1.MillwrightCluster) {
		infra.Spec.FailureDomainsFrom, infra.Spec.FailureDomains = nil, []infrav1.FailureDomain{{Name: "z"}}
	})
	if after := w.settle(); after != 0 {
		t.Errorf("the next pass is in %s", after)
	}
	w.wantDomains("z")
	if reason := reasonOf(w.infra(), infrav1.ConditionFailureDomainsKnown); reason != "" {
		t.Errorf("the condition is still there: %s", reason)
	}
}

// TestNotAsked: paused, or on its way out.
func TestNotAsked(t *testing.T) {
	for name, change := range map[string]func(*given){
		"paused": func(g *given) { g.cluster.Spec.Paused = true },
		"being deleted": func(g *given) {
			g.infra.Finalizers, g.infra.DeletionTimestamp = []string{"cluster.x-k8s.io/test"}, &metav1.Time{Time: born}
		},
		"nobody's yet": func(g *given) { g.infra.OwnerReferences = nil },
	} {
		w := newWorld(t, change)
		if w.settle(); len(w.oracle.asked) != 0 {
			t.Errorf("%s: asked %d times", name, len(w.oracle.asked))
		}
	}
}

// TestAskedNoMore: a call that is under way is cancelled when its object goes.
func TestAskedNoMore(t *testing.T) {
	w := newWorld(t)
	w.pass()
	if err := w.client.Delete(t.Context(), w.infra()); err != nil {
		t.Fatal(err)
	}
	w.pass()
	cancelled := false
	w.controller.Driver = driverFunc(func(ctx context.Context) { cancelled = ctx.Err() != nil })
	w.call()
	if !cancelled || len(w.controller.calls) != 0 {
		t.Errorf("cancelled: %v, remembered: %v", cancelled, w.controller.calls)
	}
}

// driverFunc looks at the context of a call.
type driverFunc func(context.Context)

func (f driverFunc) ListFailureDomains(ctx context.Context, _ *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	f(ctx)
	return &driver.ListFailureDomainsResponse{}, nil
}

func (f driverFunc) PlaceMachine(*driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	panic("machines are nobody's concern here")
}

// TestClassAndSecrets: what is missing is named, and its coming helps.
func TestClassAndSecrets(t *testing.T) {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	w := newWorld(t, func(g *given) {
		g.infra.Spec.FailureDomainsFrom.MachineClassRef = &infrav1.LocalReference{Name: "small"}
		g.infra.Spec.FailureDomainsFrom.CredentialsSecretRef = &infrav1.LocalReference{Name: "own"}
	})
	w.settle()
	w.wantKnown(metav1.ConditionFalse, infrav1.ReasonMachineClassMissing, `"small"`)

	class := &v1alpha1.MachineClass{ObjectMeta: named("small"), SecretRef: &corev1.SecretReference{Namespace: "ns", Name: "cloud"}}
	class.ProviderSpec.Raw = []byte(`{"pool":"p"}`)
	w.create(class)
	if got := w.controller.ofClass(t.Context(), class); len(got) != 1 || got[0].NamespacedName != w.key {
		t.Errorf("the class wakes %v", got)
	}
	if got := w.controller.ofClass(t.Context(), &v1alpha1.MachineClass{ObjectMeta: named("large")}); len(got) != 0 {
		t.Errorf("another class wakes %v", got)
	}
	w.settle()
	w.wantKnown(metav1.ConditionFalse, infrav1.ReasonMachineClassMissing, "cloud")

	w.create(&corev1.Secret{ObjectMeta: named("cloud"), Data: map[string][]byte{"a": []byte("class"), "b": []byte("class"), "userData": []byte("no")}})
	w.clock.Step(2 * listSoon)
	w.settle()
	w.wantKnown(metav1.ConditionFalse, infrav1.ReasonCredentialsMissing, `"own"`)

	w.create(&corev1.Secret{ObjectMeta: named("own"), Data: map[string][]byte{"b": []byte("own")}})
	w.clock.Step(2 * listSoon)
	w.settle()
	w.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	asked := w.oracle.asked[0]
	want := map[string][]byte{"a": []byte("class"), "b": []byte("own")}
	if diff := cmp.Diff(want, asked.Secret.Data); diff != "" || string(asked.MachineClass.ProviderSpec.Raw) != `{"pool":"p"}` {
		t.Errorf("asked with %s, and (-want +got):\n%s", asked.MachineClass.ProviderSpec.Raw, diff)
	}

	class.Generation, class.ProviderSpec.Raw = 2, []byte(`{"pool":"q"}`)
	if err := w.client.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if last := w.oracle.asked[len(w.oracle.asked)-1]; len(w.oracle.asked) != 2 || string(last.MachineClass.ProviderSpec.Raw) != `{"pool":"q"}` {
		t.Errorf("asked %d times, last with %s", len(w.oracle.asked), last.MachineClass.ProviderSpec.Raw)
	}

	w.change(func(infra *infrav1.MillwrightCluster) { infra.Spec.FailureDomainsFrom.Driver = "other" })
	w.settle()
	w.wantKnown(metav1.ConditionFalse, infrav1.ReasonUnknownDriver, `"other"`)
	w.wantDomains("a", "b")
}

// TestOddAnswers: whatever a driver says, the status can be written.
func TestOddAnswers(t *testing.T) {
	w := newWorld(t, func(g *given) { g.infra.Spec.FailureDomains = []infrav1.FailureDomain{{Name: "z"}} })
	w.oracle.names = []string{"a", "", "a", strings.Repeat("x", 257)}
	w.settle()
	w.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported)
	w.wantDomains("z", "a")

	w.oracle.names = nil
	for i := range 150 {
		w.oracle.names = append(w.oracle.names, fmt.Sprintf("d%03d", i))
	}
	w.clock.Step(2 * listEvery)
	w.settle()
	w.wantKnown(metav1.ConditionTrue, infrav1.ReasonFailureDomainsReported, "51 of the driver's")
	if got := w.infra().Status.FailureDomains; len(got) != mostDomains || got[0].Name != "z" || got[99].Name != "d098" {
		t.Errorf("%d failure domains: %v", len(got), got)
	}
}
