package capi

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const data = `{"dataSecretName":"workers"}`

// What cannot work is said, by a reason and in words, to the core too; it makes no VM, and
// holds nobody up who deletes it. Only a specification that can never work is beyond help
// (S33, S49).
func TestWhatCannotWorkIsSaidAndMakesNoVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	manager := w.manager()
	w.pool("workers", 0, `{}`)
	cases := map[string]struct {
		spec, bootstrap, reason, words string
		hopeless                       bool
	}{
		"driver":      {`{"driver":"nobody","providerSpec":{}}`, data, "UnknownDriver", `"nobody"`, false},
		"spec":        {`{"driver":"sim","providerSpec":{"join":"sideways"}}`, data, "InvalidSpec", `"sideways"`, true},
		"credentials": {`{"driver":"sim","providerSpec":{},"credentialsSecretRef":{"name":"missing"}}`, data, "CredentialsMissing", `"missing"`, false},
		"class":       {`{"driver":"sim","machineClassRef":{"name":"missing"}}`, data, "MachineClassMissing", `"missing"`, false},
		"domain":      {`{"driver":"sim","providerSpec":{},"failureDomain":"no/where"}`, data, "UnknownFailureDomain", `"no/where"`, false},
		"data":        {`{"driver":"sim","providerSpec":{}}`, `{"dataSecretName":"missing"}`, "WaitingForBootstrapData", "missing", false},
		"no-data":     {`{"driver":"sim","providerSpec":{}}`, w.neverReady(), "WaitingForBootstrapData", "no-data", false},
	}
	for name, tc := range cases {
		w.machine(w.own(name), tc.spec, tc.bootstrap)
	}
	said := func(g gomega.Gomega) {
		for name, tc := range cases {
			name = w.own(name)
			ours := w.isReady(g, name, "False", tc.reason)
			g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message", gomega.ContainSubstring(tc.words)), name)
			machine := w.get(g, "Machine", name)
			g.Expect(condition(machine, "InfrastructureReady")).To(gomega.HaveKeyWithValue("reason", tc.reason), name)
			failure := map[bool]string{true: "InvalidConfiguration"}[tc.hopeless] // S50: one of the core's
			g.Expect(text(*ours, "status", "failureReason")).To(gomega.Equal(failure), "failureReason of %s", name)
			g.Expect(text(*ours, "status", "failureMessage") != "").To(gomega.Equal(tc.hopeless), "failureMessage of %s", name)
			failed := tc.hopeless && contract == "v1beta1"
			g.Expect(text(*machine, "status", "phase") == "Failed").To(gomega.Equal(failed), "phase of %s", name)
		}
	}
	w.eventually(said)
	gomega.NewWithT(t).Consistently(func(g gomega.Gomega) {
		said(g)
		g.Expect(w.vms(g)).To(gomega.BeEmpty())
		g.Expect(manager.Done()).NotTo(gomega.BeClosed())
	}).WithTimeout(3 * time.Second).WithPolling(time.Second).Should(gomega.Succeed())
	for name := range cases {
		w.remove("Machine", w.own(name))
	}
	w.eventually(func(g gomega.Gomega) { w.settled(g, 0) })
}

// neverReady is what names bootstrap data that nobody will ever make.
func (w *world) neverReady() string {
	stub := w.object("StubBootstrap", "never")
	if err := w.Client.Create(w.t.Context(), stub); err != nil {
		w.t.Fatal(err)
	}
	reference := map[string]string{
		"v1beta1": `{"configRef":{"apiVersion":"stub.millwright.dev/v1","kind":"StubBootstrap","name":"never"}}`,
		"v1beta2": `{"configRef":{"apiGroup":"stub.millwright.dev","kind":"StubBootstrap","name":"never"}}`,
	}
	return reference[contract]
}

// What was missing and comes, comes in time.
func TestWhatIsRepairedGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 0, `{}`)
	one := w.own("one")
	w.machine(one, `{"driver":"sim","providerSpec":{},"credentialsSecretRef":{"name":"late"}}`, data)
	w.eventually(func(g gomega.Gomega) { w.isReady(g, one, "False", "CredentialsMissing") })
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = w.Namespace, "late"
	if err := w.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.eventually(func(g gomega.Gomega) { w.settled(g, 1) })
}

// D3: no room is no end. The one that has to wait gets the place of the one that goes.
func TestAMachineWithoutRoomWaitsForIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager("--resource-exhausted-retry", "1s")
	w.pool("workers", 0, `{}`)
	first, second := w.own("first"), w.own("second")
	const spec = `{"driver":"sim","providerSpec":{"pool":"small","capacity":1}}`
	w.machine(first, spec, data)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 1) })
	w.machine(second, spec, data)
	w.eventually(func(g gomega.Gomega) {
		ours := w.isReady(g, second, "False", "InsufficientCapacity")
		g.Expect(text(*ours, "status", "failureReason")).To(gomega.BeEmpty())
	})
	w.remove("Machine", first)
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 1)
		g.Expect(w.vms(g)).To(gomega.Equal([]string{second}))
	})
}

// Whoever writes another provider ID by hand is told, and neither VM is touched: not then,
// and not by the deletion of one of them.
func TestAProviderIDChangedByHandIsNotFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 0, `{}`)
	one, two := w.own("one"), w.own("two")
	w.machine(one, `{"driver":"sim","providerSpec":{}}`, data)
	w.machine(two, `{"driver":"sim","providerSpec":{}}`, data)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 2) })
	g := gomega.NewWithT(t)
	id := map[string]string{}
	for _, name := range []string{one, two} {
		id[name] = text(*w.get(g, "MillwrightMachine", name), "spec", "providerID")
	}
	set := func(machine, id string) {
		w.patch("MillwrightMachine", machine, fmt.Sprintf(`{"spec":{"providerID":%q}}`, id))
	}
	set(one, id[two])
	w.eventually(func(g gomega.Gomega) {
		ours := w.isReady(g, one, "False", "ProviderIDChanged")
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message", gomega.ContainSubstring(id[one])))
	})
	set(one, id[one])
	w.eventually(func(g gomega.Gomega) { w.isReady(g, one, "True", "Provisioned") })

	set(one, "sim:///nobody")
	w.eventually(func(g gomega.Gomega) { w.isReady(g, one, "False", "ProviderIDChanged") })
	w.remove("Machine", one)
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 1)
		g.Expect(w.vms(g)).To(gomega.Equal([]string{two}), "its own VM goes, whatever is written there")
	})
}

// The second object to name a VM does not get it, makes no other, and takes none along.
func TestTwoMachinesDoNotShareAVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 0, `{}`)
	first, second := w.own("first"), w.own("second")
	w.machine(first, `{"driver":"sim","providerSpec":{}}`, data)
	w.eventually(func(g gomega.Gomega) { w.settled(g, 1) })
	id := text(*w.get(gomega.NewWithT(t), "MillwrightMachine", first), "spec", "providerID")
	w.machine(second, fmt.Sprintf(`{"driver":"sim","providerSpec":{},"providerID":%q}`, id), data)
	w.eventually(func(g gomega.Gomega) {
		ours := w.isReady(g, second, "False", "ProviderIDTaken")
		g.Expect(condition(ours, "Ready")).To(gomega.HaveKeyWithValue("message",
			gomega.And(gomega.ContainSubstring(id), gomega.ContainSubstring(w.Namespace+"/"+first))))
		provisioned, _, _ := unstructured.NestedBool(ours.Object, "status", "initialization", "provisioned")
		g.Expect(provisioned).To(gomega.BeFalse())
	})
	w.remove("Machine", second)
	w.eventually(func(g gomega.Gomega) {
		w.isGone(g, "MillwrightMachine", second)
		w.settled(g, 1)
		g.Expect(w.vms(g)).To(gomega.Equal([]string{first}))
	})
}
