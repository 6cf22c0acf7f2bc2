package capi

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/env"
)

// C2: without an endpoint, and without a provider of control planes, the first address of a
// control plane machine is where the API servers are reached; which machine that is, only its
// Machine says.
func TestTheFirstControlPlaneAddressIsTheEndpoint(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t, env.New(t, env.WithControllerManager()).Cluster)
	w.manager()
	w.infrastructure(`{"controlPlanePort":6444}`, nil)
	w.apply(contract+"/bare.yaml", nil)
	w.pool("workers", 0, `{}`)
	worker, first, second := w.own("worker"), w.own("first"), w.own("second")
	w.machine(worker, `{"driver":"sim","providerSpec":{}}`, data)
	w.eventually(func(g gomega.Gomega) {
		// A VM has addresses once it is made, long before it is a node.
		g.Expect(addresses(w.isReady(g, worker, "True", "Provisioned"))).NotTo(gomega.BeEmpty())
		g.Expect(condition(w.get(g, "MillwrightCluster", w.cluster), "ControlPlaneEndpointKnown")).To(gomega.And(
			gomega.HaveKeyWithValue("status", "False"), gomega.HaveKeyWithValue("reason", "WaitingForControlPlane")))
		g.Expect(endpoint(w.get(g, "Cluster", w.cluster))).To(gomega.BeEmpty())
	})

	w.controlPlaneMachine(first)
	var found string
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 2)
		ours := w.get(g, "MillwrightMachine", first)
		found = fmt.Sprintf("[%s]:6444", addressOf(ours, "InternalIP"))
		g.Expect(endpoint(w.get(g, "MillwrightCluster", w.cluster))).To(gomega.Equal(found))
		g.Expect(endpoint(w.get(g, "Cluster", w.cluster))).To(gomega.Equal(found), "what the core reads")
		g.Expect(condition(w.get(g, "MillwrightCluster", w.cluster), "ControlPlaneEndpointKnown")).To(gomega.HaveKeyWithValue("status", "True"))
	})

	// It is found once, whatever comes and goes.
	w.controlPlaneMachine(second)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 3) })
	w.remove("Machine", first)
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 2)
		g.Expect(endpoint(w.get(g, "MillwrightCluster", w.cluster))).To(gomega.Equal(found))
	})
}

// controlPlaneMachine declares a Machine of the control plane that has no provider.
func (w *world) controlPlaneMachine(name string) {
	w.t.Helper()
	w.machine(name, `{"driver":"sim","providerSpec":{}}`, data)
	w.patch("Machine", name, `{"metadata":{"labels":{"cluster.x-k8s.io/control-plane":""}}}`)
}

// infrastructure declares the MillwrightCluster; spec is JSON.
func (w *world) infrastructure(spec string, annotations map[string]string) {
	w.t.Helper()
	object := w.object("MillwrightCluster", w.cluster)
	object.SetAnnotations(annotations)
	content := map[string]any{}
	if err := json.Unmarshal([]byte(spec), &content); err != nil {
		w.t.Fatal(err)
	}
	object.Object["spec"] = content
	if err := w.Client.Create(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

// endpoint is the endpoint in the spec of a cluster of either kind; empty if there is none.
func endpoint(object *unstructured.Unstructured) string {
	host, _, _ := unstructured.NestedString(object.Object, "spec", "controlPlaneEndpoint", "host")
	port, _, _ := unstructured.NestedInt64(object.Object, "spec", "controlPlaneEndpoint", "port")
	if host == "" {
		return ""
	}
	return fmt.Sprintf("[%s]:%d", host, port)
}

// addressOf is the first address of that type.
func addressOf(object *unstructured.Unstructured, kind string) string {
	for _, entry := range addresses(object) {
		if entry, ok := entry.(map[string]any); ok && entry["type"] == kind {
			address, _ := entry["address"].(string)
			return address
		}
	}
	return ""
}

// C8: what another system looks after is left alone, and its word counts.
func TestAClusterThatOthersManageIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t, env.New(t, env.WithControllerManager()).Cluster)
	w.manager()
	w.infrastructure(`{}`, map[string]string{"cluster.x-k8s.io/managed-by": "another"})
	w.apply(contract+"/cluster.yaml", nil)
	w.pool("workers", 0, `{}`)
	one := w.own("one")
	w.machine(one, `{"driver":"sim","providerSpec":{}}`, data)
	// The manager has seen the Cluster when the machine waits for its infrastructure.
	w.eventually(func(g gomega.Gomega) {
		w.isReady(g, one, "False", "WaitingForClusterInfrastructure")
		g.Expect(w.get(g, "MillwrightCluster", w.cluster).GetOwnerReferences()).NotTo(gomega.BeEmpty())
	})
	w.patch("Cluster", w.cluster, `{"metadata":{"labels":{"touched":"yes"}}}`)
	w.patch("MillwrightCluster", w.cluster, fmt.Sprintf(
		`{"spec":{"controlPlaneEndpoint":{"host":"127.0.0.1","port":%d}}}`, w.ControlPlane.Port()))
	said := `{"status":{"ready":true,"initialization":{"provisioned":true}}}`
	status := func(g gomega.Gomega) map[string]any {
		told, _, _ := unstructured.NestedMap(w.get(g, "MillwrightCluster", w.cluster).Object, "status")
		return told
	}
	gomega.NewWithT(t).Consistently(status).WithTimeout(3 * time.Second).WithPolling(500 * time.Millisecond).Should(gomega.BeEmpty())
	if err := w.Client.Status().Patch(t.Context(), w.object("MillwrightCluster", w.cluster), client.RawPatch("application/merge-patch+json", []byte(said))); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"ready": true, "initialization": map[string]any{"provisioned": true}}
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 1)
		g.Expect(status(g)).To(gomega.Equal(want), "nothing is added to what the user says")
	})
	w.remove("Cluster", w.cluster)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.vms(g)).To(gomega.BeEmpty())
		g.Expect(names(w.list(g, "MillwrightCluster"))).To(gomega.BeEmpty(), "nobody holds it")
		g.Expect(names(w.list(g, "Cluster"))).To(gomega.BeEmpty())
	})
}

// M14, R1: a manager with a filter looks after what has its label, from when on it does, and as
// long as it does.
func TestAManagerWithAFilterLeavesTheRestAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager("--watch-filter", "mine")
	w.pool("workers", 0, `{}`)
	label := func(kindName, name, value string) {
		t.Helper()
		w.patch(kindName, name, fmt.Sprintf(`{"metadata":{"labels":{"cluster.x-k8s.io/watch-filter":%s}}}`, value))
	}
	theirs, mine := w.own("theirs"), w.own("mine")
	w.machine(theirs, `{"driver":"sim","providerSpec":{}}`, data)
	w.machine(mine, `{"driver":"sim","providerSpec":{}}`, data)
	label("MillwrightMachine", theirs, `"another"`)
	label("MillwrightMachine", mine, `"mine"`)
	w.eventually(func(g gomega.Gomega) { w.isReady(g, mine, "False", "WaitingForClusterInfrastructure") })
	untouched := func(g gomega.Gomega, kindName, name string) {
		object := w.get(g, kindName, name)
		g.Expect(object.GetFinalizers()).To(gomega.BeEmpty(), name)
		g.Expect(object.Object).NotTo(gomega.HaveKey("status"), name)
		g.Expect(object.GetOwnerReferences()).NotTo(gomega.BeEmpty(), "the core has had its turn with %s", name)
	}
	w.eventually(func(g gomega.Gomega) { untouched(g, "MillwrightCluster", w.cluster) })

	label("MillwrightCluster", w.cluster, `"mine"`)
	w.eventually(func(g gomega.Gomega) {
		w.isReady(g, mine, "True", "Provisioned")
		g.Expect(text(*w.get(g, "Machine", mine), "status", "phase")).To(gomega.Equal("Running"))
		untouched(g, "MillwrightMachine", theirs)
		g.Expect(w.vms(g)).To(gomega.Equal([]string{mine}))
	})

	// It changes hands.
	label("MillwrightMachine", mine, `null`)
	w.remove("Machine", mine)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.get(g, "MillwrightMachine", mine).GetDeletionTimestamp()).NotTo(gomega.BeNil())
	})
	label("MillwrightMachine", theirs, `"mine"`)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(text(*w.get(g, "Machine", theirs), "status", "phase")).To(gomega.Equal("Running"))
		g.Expect(w.get(g, "MillwrightMachine", mine).GetFinalizers()).NotTo(gomega.BeEmpty())
		g.Expect(w.vms(g)).To(gomega.ConsistOf(mine, theirs))
	})
	label("MillwrightMachine", mine, `"mine"`)
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 1)
		g.Expect(w.vms(g)).To(gomega.Equal([]string{theirs}))
	})
}
