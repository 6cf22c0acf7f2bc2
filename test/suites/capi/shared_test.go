package capi

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// C2: without an endpoint and a provider of control planes, the first address of a control plane machine is the
// endpoint of the API servers. Only the Machine shows whether it belongs to the control plane.
func TestMillwrightCluster_EndpointIsFirstControlPlaneAddress(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newEmptyHarness(t, env.New(t, env.WithControllerManager()).Cluster)
	h.manager()
	h.infrastructure(`{"controlPlanePort":6444}`, nil)
	h.apply(contract+"/bare.yaml", nil)
	h.pool("workers", 0, `{}`)
	worker, first, second := h.own("worker"), h.own("first"), h.own("second")
	h.machine(worker, `{"driver":"sim","providerSpec":{}}`, data)
	h.eventually(func(g gomega.Gomega) {
		// A VM has addresses once it is created, long before it is a node.
		g.Expect(addresses(h.isReady(g, worker, "True", "Provisioned"))).NotTo(gomega.BeEmpty())
		g.Expect(condition(h.get(g, "MillwrightCluster", h.cluster), "ControlPlaneEndpointKnown")).To(gomega.And(
			gomega.HaveKeyWithValue("status", "False"), gomega.HaveKeyWithValue("reason", "WaitingForControlPlane")))
		g.Expect(endpoint(h.get(g, "Cluster", h.cluster))).To(gomega.BeEmpty())
	})

	h.controlPlaneMachine(first)
	var found string
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 2)
		ours := h.get(g, "MillwrightMachine", first)
		found = fmt.Sprintf("[%s]:6444", addressOf(ours, "InternalIP"))
		g.Expect(endpoint(h.get(g, "MillwrightCluster", h.cluster))).To(gomega.Equal(found))
		g.Expect(endpoint(h.get(g, "Cluster", h.cluster))).To(gomega.Equal(found), "what the core reads")
		g.Expect(condition(h.get(g, "MillwrightCluster", h.cluster), "ControlPlaneEndpointKnown")).To(gomega.HaveKeyWithValue("status", "True"))
	})

	// The endpoint is determined only once.
	h.controlPlaneMachine(second)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 3) })
	h.remove("Machine", first)
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 2)
		g.Expect(endpoint(h.get(g, "MillwrightCluster", h.cluster))).To(gomega.Equal(found))
	})
}

// controlPlaneMachine creates a Machine of a control plane without a provider.
func (h *harness) controlPlaneMachine(name string) {
	h.t.Helper()
	h.machine(name, `{"driver":"sim","providerSpec":{}}`, data)
	h.patch("Machine", name, `{"metadata":{"labels":{"cluster.x-k8s.io/control-plane":""}}}`)
}

// infrastructure creates the MillwrightCluster; spec is JSON.
func (h *harness) infrastructure(spec string, annotations map[string]string) {
	h.t.Helper()
	object := h.object("MillwrightCluster", h.cluster)
	object.SetAnnotations(annotations)
	content := map[string]any{}
	if err := json.Unmarshal([]byte(spec), &content); err != nil {
		h.t.Fatal(err)
	}
	object.Object["spec"] = content
	if err := h.Client.Create(h.t.Context(), object); err != nil {
		h.t.Fatal(err)
	}
}

// endpoint returns the endpoint in the spec of a cluster of either kind, or an empty string.
func endpoint(object *unstructured.Unstructured) string {
	host, _, _ := unstructured.NestedString(object.Object, "spec", "controlPlaneEndpoint", "host")
	port, _, _ := unstructured.NestedInt64(object.Object, "spec", "controlPlaneEndpoint", "port")
	if host == "" {
		return ""
	}
	return fmt.Sprintf("[%s]:%d", host, port)
}

// addressOf returns the first address of that type.
func addressOf(object *unstructured.Unstructured, kind string) string {
	for _, entry := range addresses(object) {
		if entry, ok := entry.(map[string]any); ok && entry["type"] == kind {
			address, _ := entry["address"].(string)
			return address
		}
	}
	return ""
}

// C8: an externally managed cluster is ignored, and its status is respected.
func TestMillwrightCluster_ExternallyManagedIsIgnored(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newEmptyHarness(t, env.New(t, env.WithControllerManager()).Cluster)
	h.manager()
	h.infrastructure(`{}`, map[string]string{"cluster.x-k8s.io/managed-by": "another"})
	h.apply(contract+"/cluster.yaml", nil)
	h.pool("workers", 0, `{}`)
	one := h.own("one")
	h.machine(one, `{"driver":"sim","providerSpec":{}}`, data)
	// When the machine waits for its infrastructure, the manager has observed the Cluster.
	h.eventually(func(g gomega.Gomega) {
		h.isReady(g, one, "False", "WaitingForClusterInfrastructure")
		g.Expect(h.get(g, "MillwrightCluster", h.cluster).GetOwnerReferences()).NotTo(gomega.BeEmpty())
	})
	h.patch("Cluster", h.cluster, `{"metadata":{"labels":{"touched":"yes"}}}`)
	h.patch("MillwrightCluster", h.cluster, fmt.Sprintf(
		`{"spec":{"controlPlaneEndpoint":{"host":"127.0.0.1","port":%d}}}`, h.ControlPlane.Port()))
	output := `{"status":{"ready":true,"initialization":{"provisioned":true}}}`
	status := func(g gomega.Gomega) map[string]any {
		status, _, _ := unstructured.NestedMap(h.get(g, "MillwrightCluster", h.cluster).Object, "status")
		return status
	}
	gomega.NewWithT(t).Consistently(status).WithTimeout(3 * time.Second).WithPolling(500 * time.Millisecond).Should(gomega.BeEmpty())
	if err := h.Client.Status().Patch(t.Context(), h.object("MillwrightCluster", h.cluster), client.RawPatch("application/merge-patch+json", []byte(output))); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"ready": true, "initialization": map[string]any{"provisioned": true}}
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 1)
		g.Expect(status(g)).To(gomega.Equal(want), "the user's status is not changed")
	})
	h.remove("Cluster", h.cluster)
	h.eventually(func(g gomega.Gomega) {
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
		g.Expect(names(h.list(g, "MillwrightCluster"))).To(gomega.BeEmpty(), "it has no finalizer")
		g.Expect(names(h.list(g, "Cluster"))).To(gomega.BeEmpty())
	})
}

// M14, R1: a manager with a filter manages the objects with its label, as long as they have it.
func TestManager_WatchFilter(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager("--watch-filter", "mine")
	h.pool("workers", 0, `{}`)
	label := func(kindName, name, value string) {
		t.Helper()
		h.patch(kindName, name, fmt.Sprintf(`{"metadata":{"labels":{"cluster.x-k8s.io/watch-filter":%s}}}`, value))
	}
	theirs, mine := h.own("theirs"), h.own("mine")
	h.machine(theirs, `{"driver":"sim","providerSpec":{}}`, data)
	h.machine(mine, `{"driver":"sim","providerSpec":{}}`, data)
	label("MillwrightMachine", theirs, `"another"`)
	label("MillwrightMachine", mine, `"mine"`)
	h.eventually(func(g gomega.Gomega) { h.isReady(g, mine, "False", "WaitingForClusterInfrastructure") })
	untouched := func(g gomega.Gomega, kindName, name string) {
		object := h.get(g, kindName, name)
		g.Expect(object.GetFinalizers()).To(gomega.BeEmpty(), name)
		g.Expect(object.Object).NotTo(gomega.HaveKey("status"), name)
		g.Expect(object.GetOwnerReferences()).NotTo(gomega.BeEmpty(), "the core has had its turn with %s", name)
	}
	h.eventually(func(g gomega.Gomega) { untouched(g, "MillwrightCluster", h.cluster) })

	label("MillwrightCluster", h.cluster, `"mine"`)
	h.eventually(func(g gomega.Gomega) {
		h.isReady(g, mine, "True", "Provisioned")
		g.Expect(text(*h.get(g, "Machine", mine), "status", "phase")).To(gomega.Equal("Running"))
		untouched(g, "MillwrightMachine", theirs)
		g.Expect(h.vms(g)).To(gomega.Equal([]string{mine}))
	})

	// The object is handed over.
	label("MillwrightMachine", mine, `null`)
	h.remove("Machine", mine)
	h.eventually(func(g gomega.Gomega) {
		g.Expect(h.get(g, "MillwrightMachine", mine).GetDeletionTimestamp()).NotTo(gomega.BeNil())
	})
	label("MillwrightMachine", theirs, `"mine"`)
	h.eventually(func(g gomega.Gomega) {
		g.Expect(text(*h.get(g, "Machine", theirs), "status", "phase")).To(gomega.Equal("Running"))
		g.Expect(h.get(g, "MillwrightMachine", mine).GetFinalizers()).NotTo(gomega.BeEmpty())
		g.Expect(h.vms(g)).To(gomega.ConsistOf(mine, theirs))
	})
	label("MillwrightMachine", mine, `"mine"`)
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 1)
		g.Expect(h.vms(g)).To(gomega.Equal([]string{theirs}))
	})
}
