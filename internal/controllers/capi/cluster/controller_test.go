package cluster

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

var startTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// given is a Cluster with its MillwrightCluster and its machines.
type given struct {
	infra    *infrav1.MillwrightCluster
	cluster  *core.Cluster
	machines []*infrav1.MillwrightMachine
}

func newGiven() *given {
	g := &given{
		infra:   &infrav1.MillwrightCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "infra"}},
		cluster: &core.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}},
	}
	g.infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.ClusterKind, Name: "c", UID: "u"}}
	g.infra.Spec.ControlPlaneEndpoint = &infrav1.APIEndpoint{Host: "api.example.com", Port: 443}
	g.cluster.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightClusterKind, Name: "infra"}
	return g
}

// machine adds a machine.
func (g *given) machine(name string, age time.Duration, labels map[string]string, addresses ...infrav1.MachineAddress) {
	machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(startTime.Add(-age)), Labels: map[string]string{core.LabelCluster: "c"},
	}}
	for key, value := range labels {
		machine.Labels[key] = value
	}
	machine.Status.Addresses = addresses
	g.machines = append(g.machines, machine)
}

// reconcile reconciles the object three times, and fails the test if the last reconcile writes.
func (g *given) reconcile(t *testing.T, change ...func(*Options)) *infrav1.MillwrightCluster {
	t.Helper()
	scheme := runtime.NewScheme()
	core.AddToScheme(scheme, core.V1Beta2)
	if err := infrav1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{g.infra}
	if g.cluster != nil {
		objects = append(objects, g.cluster)
	}
	for _, machine := range g.machines {
		objects = append(objects, machine)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&infrav1.MillwrightCluster{}).Build()
	options := Options{Client: c, Clock: testingclock.NewFakeClock(startTime)}
	for _, change := range change {
		change(&options)
	}
	controller := New(options)
	var versions []string
	got := &infrav1.MillwrightCluster{}
	for range 3 {
		if _, err := controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(g.infra)}); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(g.infra), got); err != nil {
			t.Fatal(err)
		}
		versions = append(versions, got.ResourceVersion)
	}
	if versions[1] != versions[2] {
		t.Errorf("writes without a change: versions %v", versions)
	}
	return got
}

func reasonOf(infra *infrav1.MillwrightCluster, kind string) string {
	if condition := meta.FindStatusCondition(infra.Status.Conditions, kind); condition != nil {
		return condition.Reason
	}
	return ""
}

// TestCluster_Provisioned checks that the status of both contract versions reports that machines can be created (C2, C3, C5).
func TestCluster_Provisioned(t *testing.T) {
	got := newGiven().reconcile(t)
	if !got.Status.Ready || !*got.Status.Initialization.Provisioned || reasonOf(got, infrav1.ConditionReady) != infrav1.ReasonProvisioned ||
		reasonOf(got, infrav1.ConditionControlPlaneEndpointKnown) != infrav1.ReasonEndpointKnown || len(got.Finalizers) != 0 {
		t.Errorf("status %+v, finalizers %v", got.Status, got.Finalizers)
	}
	if diff := cmp.Diff(&infrav1.APIEndpoint{Host: "api.example.com", Port: 443}, got.Spec.ControlPlaneEndpoint); diff != "" {
		t.Errorf("endpoint (-want +got):\n%s", diff)
	}
}

// TestController_IgnoresObjectsOfOthers checks that objects of other managers and paused objects are not changed.
func TestController_IgnoresObjectsOfOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		rule   string
		change func(*given)
		paused bool
	}{
		"no owner":               {rule: "C9", change: func(g *given) { g.infra.OwnerReferences = nil }},
		"owner of another kind":  {rule: "C9", change: func(g *given) { g.infra.OwnerReferences[0].Kind = "ClusterClass" }},
		"owner of another group": {rule: "C9", change: func(g *given) { g.infra.OwnerReferences[0].APIVersion = "example.com/v1" }},
		"owner deleted":          {rule: "C9", change: func(g *given) { g.cluster = nil }},
		"externally managed":     {rule: "C8", change: func(g *given) { g.infra.Annotations = map[string]string{core.KeyManagedBy: ""} }},
		"managed by label":       {rule: "C8", change: func(g *given) { g.infra.Labels = map[string]string{core.KeyManagedBy: "x"} }},
		"watch filter":           {rule: "M14", change: func(g *given) { g.infra.Labels = map[string]string{core.LabelWatchFilter: "theirs"} }},
		"paused cluster":         {rule: "G1", change: func(g *given) { g.cluster.Spec.Paused = true }, paused: true},
		"paused object":          {rule: "G1", change: func(g *given) { g.infra.Annotations = map[string]string{core.AnnotationPaused: ""} }, paused: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGiven()
			tc.change(g)
			got := g.reconcile(t, func(o *Options) {
				if tc.rule == "M14" {
					o.WatchFilter = "ours"
				}
			})
			if got.Status.Ready || got.Status.Initialization != nil {
				t.Errorf("%s: status %+v", tc.rule, got.Status)
			}
			if paused := reasonOf(got, infrav1.ConditionPaused) == infrav1.ReasonPaused; paused != tc.paused {
				t.Errorf("%s: conditions %v", tc.rule, got.Status.Conditions)
			}
		})
	}
}

// TestCluster_Endpoint checks that the endpoint is the one that the user has set, or else that of the first control plane
// machine with an address.
func TestCluster_Endpoint(t *testing.T) {
	controlPlane := map[string]string{core.LabelControlPlane: ""}
	internal := func(address string) infrav1.MachineAddress {
		return infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: address}
	}
	external := infrav1.MachineAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}
	host := infrav1.MachineAddress{Type: corev1.NodeHostName, Address: "host"}
	for name, tc := range map[string]struct {
		change func(*given)
		want   *infrav1.APIEndpoint
		reason string
	}{
		"set in the Cluster": {
			change: func(g *given) { g.cluster.Spec.ControlPlaneEndpoint = core.Endpoint{Host: "h", Port: 1} },
			reason: infrav1.ReasonEndpointKnown,
		},
		"unknown": {
			change: func(g *given) {
				g.machine("worker", time.Hour, nil, internal("10.0.0.1"))
				g.machine("no-address", time.Hour, controlPlane, host)
			},
			reason: infrav1.ReasonWaitingForControlPlane,
		},
		"oldest machine": {
			change: func(g *given) {
				g.machine("b", time.Minute, controlPlane, internal("10.0.0.3"))
				g.machine("a", time.Minute, controlPlane, internal("10.0.0.2"))
				g.machine("c", time.Second, controlPlane, internal("10.0.0.4"))
			},
			want: &infrav1.APIEndpoint{Host: "10.0.0.2", Port: 6443}, reason: infrav1.ReasonEndpointKnown,
		},
		"load balancer": {
			change: func(g *given) {
				g.infra.Spec.ControlPlaneLoadBalancer = &infrav1.ControlPlaneLoadBalancer{}
				g.machine("a", time.Minute, controlPlane, internal("10.0.0.2"))
			},
			reason: infrav1.ReasonWaitingForLoadBalancer,
		},
		"external address with a custom port": {
			change: func(g *given) {
				g.infra.Spec.ControlPlanePort = 443
				g.machine("a", time.Minute, controlPlane, host, internal("10.0.0.2"), external)
			},
			want: &infrav1.APIEndpoint{Host: "192.0.2.1", Port: 443}, reason: infrav1.ReasonEndpointKnown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGiven()
			g.infra.Spec.ControlPlaneEndpoint = nil
			tc.change(g)
			got := g.reconcile(t)
			if diff := cmp.Diff(tc.want, got.Spec.ControlPlaneEndpoint); diff != "" {
				t.Errorf("endpoint (-want +got):\n%s", diff)
			}
			if reason := reasonOf(got, infrav1.ConditionControlPlaneEndpointKnown); reason != tc.reason || !got.Status.Ready {
				t.Errorf("reason %s, status %+v", reason, got.Status)
			}
		})
	}
}

// TestCluster_FailureDomains checks that failure domains are reported in both formats of Cluster API (C4).
func TestCluster_FailureDomains(t *testing.T) {
	domains := []infrav1.FailureDomain{{Name: "a", ControlPlane: new(true)}, {Name: "b", Attributes: map[string]string{"rack": "7"}}}
	g := newGiven()
	g.infra.Spec.FailureDomains = domains
	if diff := cmp.Diff(domains, g.reconcile(t).Status.FailureDomains); diff != "" {
		t.Errorf("failure domains (-want +got):\n%s", diff)
	}
	older := newGiven()
	older.infra.Spec.FailureDomains = domains
	want := []infrav1.FailureDomain{{Name: "a", ControlPlane: new(true)}, {Name: "b", Attributes: map[string]string{"rack": "7"}}}
	if diff := cmp.Diff(want, older.reconcile(t, func(o *Options) { o.DomainsAsMap = true }).Status.FailureDomains, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("failure domains for an older Cluster API (-want +got):\n%s", diff)
	}
}

// TestStatusPatch_FormatOfFailureDomains checks what is written in both formats: a list, or a map that also removes what
// is gone.
func TestStatusPatch_FormatOfFailureDomains(t *testing.T) {
	of := func(domains ...infrav1.FailureDomain) *infrav1.MillwrightCluster {
		infra := &infrav1.MillwrightCluster{}
		infra.Name, infra.ResourceVersion, infra.Status.FailureDomains = "infra", "7", domains
		return infra
	}
	a, plain := infrav1.FailureDomain{Name: "a", ControlPlane: new(true), Attributes: map[string]string{"rack": "7"}}, infrav1.FailureDomain{Name: "a"}
	b := infrav1.FailureDomain{Name: "b"}
	for name, test := range map[string]struct {
		before, after  *infrav1.MillwrightCluster
		asMap, rewrite bool
		want           string
	}{
		"new list":          {of(), of(a), false, false, `{"metadata":{"resourceVersion":"7"},"status":{"failureDomains":[{"name":"a","controlPlane":true,"attributes":{"rack":"7"}}]}}`},
		"new map":           {of(), of(a), true, false, `{"metadata":{"resourceVersion":"7"},"status":{"failureDomains":{"a":{"controlPlane":true,"attributes":{"rack":"7"}}}}}`},
		"changed map":       {of(a, b), of(plain), true, false, `{"metadata":{"resourceVersion":"7"},"status":{"failureDomains":{"a":{"controlPlane":null,"attributes":{"rack":null}},"b":null}}}`},
		"unchanged":         {of(a), of(a), true, false, `{"metadata":{"resourceVersion":"7"}}`},
		"perhaps a map":     {of(b), of(b), false, true, `{"metadata":{"resourceVersion":"7"},"status":{"failureDomains":[{"name":"b"}]}}`},
		"perhaps a list":    {of(b), of(b), true, true, `{"metadata":{"resourceVersion":"7"},"status":{"failureDomains":{"b":{"controlPlane":null,"attributes":{}}}}}`},
		"no failure domain": {of(a), of(), true, false, `{"metadata":{"resourceVersion":"7"},"status":{"failureDomains":{"a":null}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := statusPatch{before: test.before, asMap: test.asMap, rewrite: test.rewrite}.Data(test.after)
			if err != nil {
				t.Fatal(err)
			}
			var is, want any
			if err := errors.Join(json.Unmarshal(got, &is), json.Unmarshal([]byte(test.want), &want)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, is); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOfCluster(t *testing.T) {
	g := newGiven()
	c := New(Options{})
	if got := c.ofCluster(t.Context(), g.cluster); len(got) != 1 || got[0].Name != "infra" {
		t.Errorf("requests %v", got)
	}
	for _, other := range []core.Reference{
		{APIGroup: infrav1.GroupName, Kind: "OtherCluster", Name: "infra"},
		{APIGroup: "infrastructure.example.com", Kind: infrav1.MillwrightClusterKind, Name: "infra"},
	} {
		g.cluster.Spec.InfrastructureRef = other
		if got := c.ofCluster(t.Context(), g.cluster); len(got) != 0 {
			t.Errorf("%+v: requests %v", other, got)
		}
	}
}

// TestAddressChanges lists the changes of a machine that may change the addresses of the API servers.
func TestAddressChanges(t *testing.T) {
	machine := func(controlPlane bool, addresses int) *infrav1.MillwrightMachine {
		m := &infrav1.MillwrightMachine{}
		if controlPlane {
			m.Labels = map[string]string{core.LabelControlPlane: ""}
		}
		for range addresses {
			m.Status.Addresses = append(m.Status.Addresses, infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: "a"})
		}
		return m
	}
	for name, tc := range map[string]struct {
		before, after *infrav1.MillwrightMachine
		want          bool
	}{
		"worker":                        {machine(false, 0), machine(false, 1), false},
		"address added":                 {machine(true, 0), machine(true, 1), true},
		"no change":                     {machine(true, 1), machine(true, 1), false},
		"becomes control plane machine": {machine(false, 1), machine(true, 1), true},
	} {
		if got := addressChanges().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
