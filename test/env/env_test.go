package env_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }

func secret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// clientAs returns a client whose requests can be recognised.
func clientAs(t *testing.T, config *rest.Config, agent string) client.WithWatch {
	t.Helper()
	config = rest.CopyConfig(config)
	config.UserAgent = agent
	c, err := client.NewWithWatch(config, client.Options{Scheme: env.NewScheme()})
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNamespacesAreApart(t *testing.T) {
	one, two := env.New(t), env.New(t)
	if one.Namespace == two.Namespace {
		t.Fatalf("two tests share namespace %s", one.Namespace)
	}
	must(t, one.Client.Create(t.Context(), secret(one.Namespace, "mine")))
	err := two.Client.Get(t.Context(), client.ObjectKey{Namespace: two.Namespace, Name: "mine"}, &corev1.Secret{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("want the secret of one namespace to be missing in the other, got %v", err)
	}
	if one.ControlPlane != two.ControlPlane {
		t.Error("want one control plane for both")
	}
}

func TestNamespaceIsDeletedAfterTheTest(t *testing.T) {
	var namespace string
	t.Run("inner", func(t *testing.T) { namespace = env.New(t).Namespace })
	found := &corev1.Namespace{}
	err := env.New(t).Client.Get(t.Context(), client.ObjectKey{Name: namespace}, found)
	if err == nil && found.DeletionTimestamp.IsZero() {
		t.Errorf("namespace %s of a finished test is not being deleted", namespace)
	}
	must(t, client.IgnoreNotFound(err))
}

func TestMachinesAndPodsCanBeCreated(t *testing.T) {
	e := env.New(t)
	meta := metav1.ObjectMeta{Namespace: e.Namespace, Name: "one"}
	must(t, e.Client.Create(t.Context(), &v1alpha1.Machine{ObjectMeta: meta}))
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "b"}}}}
	must(t, e.Client.Create(t.Context(), pod))
}

func TestPairIsApart(t *testing.T) {
	e := env.NewPair(t)
	if e.Admin.Host == e.Target.Admin.Host {
		t.Fatalf("control and target are both at %s", e.Admin.Host)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + e.Namespace}}
	must(t, e.Target.Client.Create(t.Context(), node))
	err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(node), &corev1.Node{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("want no such node in the control cluster, got %v", err)
	}
}

func TestControllerManagerRuns(t *testing.T) {
	e := env.New(t, env.WithControllerManager())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	accounts, err := clientAs(t, e.Admin, "watcher").Watch(ctx, &corev1.ServiceAccountList{}, client.InNamespace(e.Namespace))
	must(t, err)
	defer accounts.Stop()
	if _, ok := <-accounts.ResultChan(); !ok {
		t.Error("nobody made the default service account within a minute")
	}
}

func TestUserHasTheRightsOfTheRoleOnly(t *testing.T) {
	e := env.New(t)
	user := clientAs(t, e.UserWith(t, "test/env/testdata/roles.yaml"), "user")
	must(t, user.Create(t.Context(), secret(e.Namespace, "allowed")))
	must(t, user.List(t.Context(), &corev1.NodeList{}))
	if err := user.Delete(t.Context(), secret(e.Namespace, "allowed")); !apierrors.IsForbidden(err) {
		t.Errorf("want a delete without the right to be forbidden, got %v", err)
	}
	if err := user.Create(t.Context(), secret("default", "elsewhere")); !apierrors.IsForbidden(err) {
		t.Errorf("want a create in another namespace to be forbidden, got %v", err)
	}
	must(t, user.List(t.Context(), &corev1.SecretList{}, client.InNamespace("kube-system")))
}

func TestUserWithTheShippedRoles(t *testing.T) {
	e := env.NewPair(t)
	control := clientAs(t, e.UserWith(t, "config/rbac/control-role.yaml"), "user")
	target := clientAs(t, e.Target.UserWith(t, "config/rbac/target-role.yaml"), "user")
	must(t, control.List(t.Context(), &v1alpha1.MachineList{}, client.InNamespace(e.Namespace)))
	must(t, target.List(t.Context(), &corev1.NodeList{}))
	if err := control.List(t.Context(), &corev1.NodeList{}); !apierrors.IsForbidden(err) {
		t.Errorf("want nodes of the control cluster to be out of reach, got %v", err)
	}
}

// workload makes a known number of requests: per round 1 create, 1 get, 2 patches,
// 1 delete and 1 eviction that is not found.
func workload(t *testing.T, c client.Client, namespace string, rounds int) {
	t.Helper()
	for i := range rounds {
		object := secret(namespace, fmt.Sprintf("object-%d", i))
		must(t, c.Create(t.Context(), object))
		must(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), object))
		for j := range 2 {
			before := object.DeepCopy()
			object.Labels = map[string]string{"turn": fmt.Sprint(j)}
			must(t, c.Patch(t.Context(), object, client.MergeFrom(before)))
		}
		must(t, c.Delete(t.Context(), object))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nobody"}}
		err := c.SubResource("binding").Create(t.Context(), pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "x"}})
		if !apierrors.IsNotFound(err) {
			t.Fatalf("want the pod to be missing, got %v", err)
		}
	}
}

func TestRecorderCountsExactly(t *testing.T) {
	e := env.New(t)
	agent := "counted/v1 (linux/amd64) test"
	counted, other := clientAs(t, e.Admin, agent), clientAs(t, e.Admin, "other/v1")
	warmUp(t, e.Namespace, counted, other)

	workload(t, counted, e.Namespace, 1) // before the recording
	recorder := e.Record(t)
	workload(t, counted, e.Namespace, 20)
	workload(t, other, e.Namespace, 3)
	apart(t, e.Namespace, counted)
	report := recorder.Stop()
	workload(t, counted, e.Namespace, 1) // after it

	t.Log("\n" + report.Table())
	mine := report.Where(env.Filter{UserAgent: "counted/", Namespace: e.Namespace})
	got := map[string]int{}
	for _, request := range mine.Requests {
		got[fmt.Sprintf("%s %s %s", request.Kind(), request.Verb, request.Resource)]++
	}
	want := map[string]int{
		"work create secrets": 20, "work get secrets": 20, "work patch secrets": 40, "work delete secrets": 20,
		"work create pods/binding": 20, "event create events": 2, "lease create leases": 1, "watch watch secrets": 1,
		"work create machines": 1, "work patch machines/status": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("recorded requests (-want +got):\n%s", diff)
	}
	if total, perN := mine.Total(), mine.PerN(20); total != 122 || perN != 6.1 {
		t.Errorf("want 122 requests, 6.1 for each of 20, got %d and %g", total, perN)
	}
	if count := report.Count(env.Filter{UserAgent: "other/", Verb: "patch", Resource: "secrets"}); count != 6 {
		t.Errorf("want 6 patches by the other agent, got %d", count)
	}
	if len(report.Unaccounted) != 0 {
		t.Errorf("the API server's own count differs: %v", report.Unaccounted)
	}
}

// warmUp has the clients look up the resources, so that no discovery is recorded later.
func warmUp(t *testing.T, namespace string, clients ...client.Client) {
	t.Helper()
	for _, c := range clients {
		must(t, c.List(t.Context(), &v1alpha1.MachineList{}, client.InNamespace(namespace)))
		must(t, c.List(t.Context(), &coordinationv1.LeaseList{}, client.InNamespace(namespace)))
	}
}

// apart makes requests that are counted apart, and two on custom resources.
func apart(t *testing.T, namespace string, c client.WithWatch) {
	t.Helper()
	for i := range 2 {
		must(t, c.Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("event-%d", i)},
			InvolvedObject: corev1.ObjectReference{Namespace: namespace, Kind: "Secret", Name: "object-0"},
		}))
	}
	must(t, c.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lease"}}))
	secrets, err := c.Watch(t.Context(), &corev1.SecretList{}, client.InNamespace(namespace))
	must(t, err)
	secrets.Stop()
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "machine"}}
	must(t, c.Create(t.Context(), machine))
	before := machine.DeepCopy()
	machine.Status.CurrentStatus.Phase = v1alpha1.MachinePending
	must(t, c.Status().Patch(t.Context(), machine, client.MergeFrom(before)))
}

func TestRecorderShowsRefusedRequests(t *testing.T) {
	e := env.New(t)
	user := clientAs(t, e.UserWith(t, "test/env/testdata/roles.yaml"), "refused/v1")
	recorder := e.Record(t)
	if err := user.Delete(t.Context(), secret(e.Namespace, "any")); !apierrors.IsForbidden(err) {
		t.Fatalf("want it to be forbidden, got %v", err)
	}
	report := recorder.Stop()
	mine := report.Where(env.Filter{UserAgent: "refused/", Kind: env.Work})
	if mine.Total() != 1 || !mine.Requests[0].Refused || mine.Requests[0].Code != 403 {
		t.Errorf("want one refused request, got %+v", mine.Requests)
	}
	if len(report.Unaccounted) != 0 {
		t.Errorf("the API server's own count differs: %v", report.Unaccounted)
	}
}

func TestOwnControlPlaneCanBeTakenAway(t *testing.T) {
	e, shared := env.New(t, env.WithOwn()), env.New(t)
	if e.ControlPlane == shared.ControlPlane {
		t.Fatal("want a control plane that is not shared")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must(t, e.Client.Create(ctx, secret(e.Namespace, "kept")))
	recorder := e.Record(t)

	must(t, e.ControlPlane.StopComponent(ctx, controlplane.APIServer))
	if err := e.Client.List(ctx, &corev1.NodeList{}); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		t.Errorf("want no answer from a stopped API server, got %v", err)
	}
	must(t, e.ControlPlane.StartComponent(ctx, controlplane.APIServer))
	must(t, e.Client.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: "kept"}, &corev1.Secret{}))

	report := recorder.Stop()
	if !report.Restarted || report.Count(env.Filter{Verb: "get", Name: "kept"}) != 1 {
		t.Errorf("want a report across the restart, got\n%s", report.Table())
	}
}
