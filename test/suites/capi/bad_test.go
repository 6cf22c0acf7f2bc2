package capi

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/millwright-dev/millwright/test/support/tier"
)

const data = `{"dataSecretName":"workers"}`

// TestMillwrightMachine_InvalidCreatesNoVM checks that an invalid configuration is reported with a reason and a
// message, to the core too, that no VM is created, and that the machine can be deleted. Only a specification that
// identifies no VM fails permanently (S33, S49): CreateMachine also gets bootstrap data, and may have refused that.
func TestMillwrightMachine_InvalidCreatesNoVM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	manager := h.manager()
	h.pool("workers", 0, `{}`)
	cases := map[string]struct {
		spec, bootstrap, reason, texts string
		hopeless                       bool
	}{
		"driver":      {`{"driver":"unknown","providerSpec":{}}`, data, "UnknownDriver", `"unknown"`, false},
		"spec":        {`{"driver":"sim","providerSpec":{"join":"sideways"}}`, data, "InvalidSpec", `"sideways"`, false},
		"tags":        {`{"driver":"sim","providerSpec":{"tags":"none"}}`, data, "InvalidSpec", "tags", true},
		"credentials": {`{"driver":"sim","providerSpec":{},"credentialsSecretRef":{"name":"missing"}}`, data, "CredentialsMissing", `"missing"`, false},
		"class":       {`{"driver":"sim","machineClassRef":{"name":"missing"}}`, data, "MachineClassMissing", `"missing"`, false},
		"domain":      {`{"driver":"sim","providerSpec":{},"failureDomain":"no/where"}`, data, "UnknownFailureDomain", `"no/where"`, false},
		"data":        {`{"driver":"sim","providerSpec":{}}`, `{"dataSecretName":"missing"}`, "WaitingForBootstrapData", "missing", false},
		"no-data":     {`{"driver":"sim","providerSpec":{}}`, h.neverReady(), "WaitingForBootstrapData", "no-data", false},
	}
	for name, tc := range cases {
		h.machine(h.own(name), tc.spec, tc.bootstrap)
	}
	output := func(g gomega.Gomega) {
		for name, tc := range cases {
			name = h.own(name)
			ours := h.isReady(g, name, "False", tc.reason)
			g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message", gomega.ContainSubstring(tc.texts)), name)
			machine := h.get(g, "Machine", name)
			g.Expect(condition(machine, "InfrastructureReady")).To(gomega.HaveKeyWithValue("reason", tc.reason), name)
			failure := map[bool]string{true: "InvalidConfiguration"}[tc.hopeless] // S50: one of the core's reasons
			g.Expect(text(*ours, "status", "failureReason")).To(gomega.Equal(failure), "failureReason of %s", name)
			g.Expect(text(*ours, "status", "failureMessage") != "").To(gomega.Equal(tc.hopeless), "failureMessage of %s", name)
			failed := tc.hopeless && contract == "v1beta1"
			g.Expect(text(*machine, "status", "phase") == "Failed").To(gomega.Equal(failed), "phase of %s", name)
		}
	}
	h.eventually(output)
	gomega.NewWithT(t).Consistently(func(g gomega.Gomega) {
		output(g)
		g.Expect(h.vms(g)).To(gomega.BeEmpty())
		g.Expect(manager.Done()).NotTo(gomega.BeClosed())
	}).WithTimeout(3 * time.Second).WithPolling(time.Second).Should(gomega.Succeed())
	for name := range cases {
		h.remove("Machine", h.own(name))
	}
	h.eventually(func(g gomega.Gomega) { h.settled(g, 0) })
}

// neverReady refers to bootstrap data that are never created.
func (h *harness) neverReady() string {
	stub := h.object("StubBootstrap", "never")
	if err := h.Client.Create(h.t.Context(), stub); err != nil {
		h.t.Fatal(err)
	}
	reference := map[string]string{
		"v1beta1": `{"configRef":{"apiVersion":"stub.millwright.dev/v1","kind":"StubBootstrap","name":"never"}}`,
		"v1beta2": `{"configRef":{"apiGroup":"stub.millwright.dev","kind":"StubBootstrap","name":"never"}}`,
	}
	return reference[contract]
}

// TestMillwrightMachine_ContinuesWhenRepaired checks that a machine continues when a missing object is created.
func TestMillwrightMachine_ContinuesWhenRepaired(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 0, `{}`)
	one := h.own("one")
	h.machine(one, `{"driver":"sim","providerSpec":{},"credentialsSecretRef":{"name":"late"}}`, data)
	h.eventually(func(g gomega.Gomega) { h.isReady(g, one, "False", "CredentialsMissing") })
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = h.Namespace, "late"
	if err := h.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })
}

// D3: missing capacity is not a permanent failure. The waiting machine gets the capacity of one that is deleted.
func TestMillwrightMachine_WaitsForCapacity(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager("--resource-exhausted-retry", "1s")
	h.pool("workers", 0, `{}`)
	first, second := h.own("first"), h.own("second")
	const spec = `{"driver":"sim","providerSpec":{"pool":"small","capacity":1}}`
	h.machine(first, spec, data)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })
	h.machine(second, spec, data)
	h.eventually(func(g gomega.Gomega) {
		ours := h.isReady(g, second, "False", "InsufficientCapacity")
		g.Expect(text(*ours, "status", "failureReason")).To(gomega.BeEmpty())
	})
	h.remove("Machine", first)
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 1)
		g.Expect(h.vms(g)).To(gomega.Equal([]string{second}))
	})
}

// TestMillwrightMachine_ManualProviderIDIsReported checks that a provider ID that was changed manually is reported, and
// that neither VM is touched, not even when one of the machines is deleted.
func TestMillwrightMachine_ManualProviderIDIsReported(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 0, `{}`)
	one, two := h.own("one"), h.own("two")
	h.machine(one, `{"driver":"sim","providerSpec":{}}`, data)
	h.machine(two, `{"driver":"sim","providerSpec":{}}`, data)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 2) })
	g := gomega.NewWithT(t)
	id := map[string]string{}
	for _, name := range []string{one, two} {
		id[name] = text(*h.get(g, "MillwrightMachine", name), "spec", "providerID")
	}
	set := func(machine, id string) {
		h.patch("MillwrightMachine", machine, fmt.Sprintf(`{"spec":{"providerID":%q}}`, id))
	}
	set(one, id[two])
	h.eventually(func(g gomega.Gomega) {
		ours := h.isReady(g, one, "False", "ProviderIDChanged")
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message", gomega.ContainSubstring(id[one])))
	})
	set(one, id[one])
	h.eventually(func(g gomega.Gomega) { h.isReady(g, one, "True", "Provisioned") })

	set(one, "sim:///nobody")
	h.eventually(func(g gomega.Gomega) { h.isReady(g, one, "False", "ProviderIDChanged") })
	h.remove("Machine", one)
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 1)
		g.Expect(h.vms(g)).To(gomega.Equal([]string{two}), "its own VM goes, whatever is written there")
	})
}

// TestMillwrightMachine_VMIsNotShared checks that the second object that refers to a VM neither gets nor deletes it, and
// creates no other VM.
func TestMillwrightMachine_VMIsNotShared(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 0, `{}`)
	first, second := h.own("first"), h.own("second")
	h.machine(first, `{"driver":"sim","providerSpec":{}}`, data)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })
	id := text(*h.get(gomega.NewWithT(t), "MillwrightMachine", first), "spec", "providerID")
	h.machine(second, fmt.Sprintf(`{"driver":"sim","providerSpec":{},"providerID":%q}`, id), data)
	h.eventually(func(g gomega.Gomega) {
		ours := h.isReady(g, second, "False", "ProviderIDTaken")
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message",
			gomega.And(gomega.ContainSubstring(id), gomega.ContainSubstring(h.Namespace+"/"+first))))
		provisioned, _, _ := unstructured.NestedBool(ours.Object, "status", "initialization", "provisioned")
		g.Expect(provisioned).To(gomega.BeFalse())
	})
	h.remove("Machine", second)
	h.eventually(func(g gomega.Gomega) {
		h.isGone(g, "MillwrightMachine", second)
		h.settled(g, 1)
		g.Expect(h.vms(g)).To(gomega.Equal([]string{first}))
	})
}
