package scenario

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMachine_ReportsMissingInput checks that a Machine that cannot be created reports why, in its status and in one
// event, and is created as soon as the missing object exists.
func TestMachine_ReportsMissingInput(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	noUserData := secret(w.Namespace, "nouserdata")
	noUserData.Data = nil
	w.create(
		class(w.Namespace, "nosecret", `{}`),
		noUserData, class(w.Namespace, "nouserdata", `{}`),
		secret(w.Namespace, "badspec"), class(w.Namespace, "badspec", `{"join":"sometimes"}`),
	)
	w.manager() // not earlier, because it could observe a Machine before its class
	cases := map[string]struct {
		sentence string
		errCode  string
		repair   func()
	}{
		"noclass": {
			sentence: `MachineClass "noclass" not found in namespace "` + w.Namespace + `"`,
			repair:   func() { w.create(secret(w.Namespace, "noclass"), class(w.Namespace, "noclass", `{}`)) },
		},
		"nosecret": {
			sentence: `Secret "` + w.Namespace + `/nosecret" of MachineClass "nosecret" not found`,
			repair:   func() { w.create(secret(w.Namespace, "nosecret")) },
		},
		"nouserdata": {
			sentence: `No Secret of MachineClass "nouserdata" has the key "userData"`,
			repair: func() {
				w.patch(noUserData, `{"data":{"userData":"eA=="}}`)
			},
		},
		"badspec": {
			sentence: `join`,
			errCode:  "InvalidArgument",
			repair: func() {
				w.patch(class(w.Namespace, "badspec", ""), `{"providerSpec":{"join":"ready"}}`)
			},
		},
	}
	for name := range cases {
		w.create(&v1alpha1.Machine{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name + "-" + w.Namespace},
			Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: name}},
		})
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name + "-" + w.Namespace}}
			w.eventually(func(g gomega.Gomega) {
				g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
				g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineCrashLoopBackOff))
				last := machine.Status.LastOperation
				g.Expect(last.State).To(gomega.Equal(v1alpha1.MachineStateFailed))
				g.Expect(last.Description).To(gomega.ContainSubstring(tc.sentence))
				g.Expect(last.ErrorCode).To(gomega.Equal(tc.errCode))
				g.Expect(w.eventsOf(g, machine)).To(gomega.ConsistOf(gomega.ContainSubstring(tc.sentence)))
			})
			tc.repair()
			w.eventually(func(g gomega.Gomega) {
				g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
				g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning))
			})
		})
	}
}

// TestMachine_WithoutClassCanBeDeleted checks that nothing blocks the deletion, because there is no VM.
func TestMachine_WithoutClassCanBeDeleted(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	w.manager()
	machine := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "typo-" + w.Namespace},
		Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "typo"}},
	}
	w.create(machine)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineCrashLoopBackOff))
	})
	if err := w.Client.Delete(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	w.eventually(func(g gomega.Gomega) {
		g.Expect(client.IgnoreNotFound(w.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine))).To(gomega.Succeed())
		machines := &v1alpha1.MachineList{}
		g.Expect(w.Client.List(t.Context(), machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.BeEmpty())
	})
}

// TestMachine_FailedIsRemovedWithInvalidClass checks that failed Machines of a class with an unknown field are removed, even if
// they had a VM, so that they do not accumulate. The pool must become available when the class is corrected.
func TestMachine_FailedIsRemovedWithInvalidClass(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	deployment := w.pool("unknown", 2, `{}`)
	w.manager("--machine-creation-timeout", "5s")
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	of := class(w.Namespace, deployment.Name, "")
	w.patch(of, `{"providerSpec":{"joinDelya":"1s"}}`)
	if err := w.Client.Delete(t.Context(), w.machine(w.namesOf(t, deployment)[0])); err != nil {
		t.Fatal(err)
	}
	seen := map[types.UID]bool{}
	w.eventually(func(g gomega.Gomega) {
		machines := &v1alpha1.MachineList{}
		g.Expect(w.Client.List(t.Context(), machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
		for _, machine := range machines.Items {
			seen[machine.UID] = true
		}
		g.Expect(len(seen)).To(gomega.BeNumerically(">=", 4), "all Machines: two that were Running, one that failed, and its replacement")
		g.Expect(len(machines.Items)).To(gomega.BeNumerically("<=", 3), "existing Machines: two, and one that is being replaced")
	})
	w.patch(of, `{"providerSpec":{"joinDelya":null}}`)
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
}

// TestManager_SecondStandsBy checks that the second manager stands by, reports the leader, and takes over when the first one
// is gone.
func TestManager_SecondStandsBy(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	first := w.manager()
	w.leads(first)
	second := w.manager()
	w.eventually(func(g gomega.Gomega) {
		g.Expect(second.Output.String()).To(gomega.ContainSubstring("standing by: another manager holds the leases"))
	})
	if strings.Contains(second.Output.String(), "Starting workers") {
		t.Error("the second manager works concurrently with the first")
	}
	first.Stop()
	w.leads(second)
	second.Stop()
}

// TestManager_TargetClusterIsUnreachable checks that while the target cluster is unreachable, Machines report what they wait for, no VM
// is created that could not join, and no Machine is marked Failed. When the cluster responds, everything
// continues.
func TestManager_TargetClusterIsUnreachable(t *testing.T) {
	tier.All(t)
	w := newScenario(t, env.WithOwn())
	if err := w.Target.ControlPlane.StopComponent(t.Context(), controlplane.APIServer); err != nil {
		t.Fatal(err)
	}
	deployment := w.pool("away", 2, `{}`)
	w.manager("--machine-creation-timeout", "3s")
	w.eventually(func(g gomega.Gomega) {
		machines := &v1alpha1.MachineList{}
		g.Expect(w.Client.List(t.Context(), machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.HaveLen(2))
		for _, machine := range machines.Items {
			g.Expect(machine.Status.LastOperation.Description).To(gomega.ContainSubstring("bootstrap token"))
			g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineCrashLoopBackOff))
			g.Expect(time.Since(machine.CreationTimestamp.Time)).To(gomega.BeNumerically(">", 4*time.Second), "well past the creation timeout")
		}
	})
	if vms := w.countVMs(); vms != 0 {
		t.Errorf("%d VMs were made though nothing could join", vms)
	}
	if err := w.Target.ControlPlane.StartComponent(t.Context(), controlplane.APIServer); err != nil {
		t.Fatal(err)
	}
	// Watches are retried after up to a minute.
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
}

// TestManager_WithoutTargetCluster checks that without a target cluster, a Machine is Available as soon as its VM exists.
func TestManager_WithoutTargetCluster(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	w.pool("notarget", 1, `{}`)
	millwright(t, "manager", "--driver", "sim", "--namespace", w.Namespace, "--port", "0",
		"--control-kubeconfig", w.path("control"), "--target-kubeconfig", "none")
	w.eventually(func(g gomega.Gomega) {
		machines := &v1alpha1.MachineList{}
		g.Expect(w.Client.List(t.Context(), machines, client.InNamespace(w.Namespace))).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.HaveLen(1))
		machine := machines.Items[0]
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineAvailable))
		g.Expect(machine.Labels).NotTo(gomega.HaveKey("node"))
		g.Expect(machine.Status.Addresses).To(gomega.ContainElement(corev1.NodeAddress{Type: corev1.NodeHostName, Address: machine.Name}))
	})
}

// TestManager_ControlClusterIsUnreachable checks that a manager that starts before the control cluster reports what it waits for, and
// shuts down gracefully.
func TestManager_ControlClusterIsUnreachable(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	env.WriteKubeconfig(t, w.path("control"), &rest.Config{Host: "https://127.0.0.1:1"})
	manager := w.manager()
	w.eventually(func(g gomega.Gomega) {
		g.Expect(manager.Output.String()).To(gomega.MatchRegexp(
			`waiting for the API server of the control cluster.*server=https://127\.0\.0\.1:1.*connection refused`))
	})
	manager.Stop()
}

// TestManager_ExplainsStartupErrors checks that each mistake stops the program with one sentence that describes what to do.
func TestManager_ExplainsStartupErrors(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	bare := env.New(t, env.WithOwn())
	crds := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "machinesets.machine.sapcloud.io"}}
	if err := bareClient(t, bare.Admin).Delete(t.Context(), crds); err != nil {
		t.Fatal(err)
	}
	w.eventually(func(g gomega.Gomega) {
		served, err := discovery.NewDiscoveryClientForConfigOrDie(bare.Admin).ServerResourcesForGroupVersion(v1alpha1.SchemeGroupVersion.String())
		g.Expect(err).NotTo(gomega.HaveOccurred())
		for _, resource := range served.APIResources {
			g.Expect(resource.Name).NotTo(gomega.Equal("machinesets"), "in discovery")
		}
	})
	env.WriteKubeconfig(t, w.path("bare"), bare.Admin)
	garbage := filepath.Join(w.dir, "garbage")
	if err := os.WriteFile(garbage, []byte("{this is not a kubeconfig"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() }) // after the parallel subtests
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)

	good := func(more ...string) []string {
		return append([]string{
			"manager", "--driver", "sim", "--namespace", w.Namespace, "--port", "0", "--leader-elect=false",
			"--control-kubeconfig", w.path("control"), "--target-kubeconfig", w.path("target"),
		}, more...)
	}
	cases := map[string]struct {
		args     []string
		status   int
		wantText string
	}{
		"no driver":             {good("--driver", ""), 2, "--driver: required; known drivers: vm, sim"},
		"unknown driver":        {good("--driver", "clay"), 2, `--driver: unknown driver "clay"; known drivers: vm, sim`},
		"unknown flag":          {good("--color"), 2, "unknown flag: --color"},
		"kubeconfig missing":    {good("--control-kubeconfig", filepath.Join(w.dir, "nothing")), 1, "--control-kubeconfig: stat " + filepath.Join(w.dir, "nothing") + ": no such file or directory"},
		"kubeconfig garbage":    {good("--target-kubeconfig", garbage), 1, "--target-kubeconfig: error loading config file"},
		"CRDs missing":          {good("--control-kubeconfig", w.path("bare")), 1, "does not serve machinesets of machine.sapcloud.io/v1alpha1; install the CRDs"},
		"port taken":            {good("--address", "127.0.0.1", "--port", port), 1, "cannot listen on port " + port + " of 127.0.0.1: address already in use; choose another port with --port"},
		"directory read-only":   {good("--sim-dir", filepath.Join(garbage, "sim")), 1, "--sim-dir: cannot use directory " + filepath.Join(garbage, "sim")},
		"up: not writable":      {[]string{"up", "--dir", filepath.Join(garbage, "up")}, 1, filepath.Join(garbage, "up")},
		"nowhere to join or be": {[]string{"manager", "--driver", "sim", "--target-kubeconfig", "none"}, 2, "--control-kubeconfig: required if --target-kubeconfig is none"},
		"nonsense numbers":      {good("--concurrent-syncs", "0", "--kube-api-qps", "-1"), 2, "--concurrent-syncs: must be greater than 0"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := millwright(t, tc.args...)
			_ = p.Wait() // the exit status is checked
			if got := p.ExitCode(); got != tc.status {
				t.Errorf("exit status %d, want %d", got, tc.status)
			}
			lines := strings.Split(strings.TrimSpace(p.Output.String()), "\n")
			printed := ""
			for _, line := range lines {
				if strings.HasPrefix(line, "millwright: ") {
					printed = line
				}
			}
			if !strings.Contains(printed, tc.wantText) {
				t.Errorf("got %q, want %q; all output:\n%s", printed, tc.wantText, p.Output.String())
			}
		})
	}
}

func bareClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := env.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// patch changes an object by a merge patch.
func (w *scenario) patch(object client.Object, merge string) {
	w.t.Helper()
	if err := w.Client.Patch(w.t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(merge))); err != nil {
		w.t.Fatal(err)
	}
}

// eventsOf returns the distinct warnings about an object.
func (w *scenario) eventsOf(g gomega.Gomega, object client.Object) []string {
	events := &corev1.EventList{}
	g.Expect(w.Client.List(w.t.Context(), events, client.InNamespace(w.Namespace))).To(gomega.Succeed())
	var messages []string
	for _, event := range events.Items {
		if event.InvolvedObject.UID == object.GetUID() && event.Type == corev1.EventTypeWarning {
			messages = append(messages, event.Message)
		}
	}
	return messages
}
