package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/env"
)

// clusters has a control and a target cluster, a simulated provider, and the real manager. Tests run the command
// as a user would, so a changed message of a controller that the command parses does not go unnoticed.
type clusters struct {
	*env.Env
	t               *testing.T
	cloud           *sim.Cloud
	control, target string // kubeconfig paths
	// access has the users with the managers' permissions in both clusters. All clusters of a test share it.
	access [2]*rest.Config
}

func newClusters(t *testing.T, options ...env.Option) *clusters {
	t.Helper()
	w := &clusters{Env: env.NewPair(t, options...), t: t, cloud: sim.NewCloud(sim.CloudOptions{})}
	ctrl.SetLogger(logr.Discard())
	w.control, w.target = writeKubeconfig(t, w.Admin), writeKubeconfig(t, w.Target.Admin)
	return w
}

// writeKubeconfig writes a kubeconfig with everything needed to connect.
func writeKubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	env.WriteKubeconfig(t, path, config)
	return path
}

// manage starts a manager with the shipped permissions, and returns a function that stops it. The end of the test
// stops it too.
func (w *clusters) manage(changes ...func(*manager.Config)) (stop func()) {
	w.t.Helper()
	if w.access[0] == nil {
		w.access = [2]*rest.Config{w.UserWith(w.t, "config/rbac/control-role.yaml"), w.Target.UserWith(w.t, "config/rbac/target-role.yaml")}
	}
	simulated := sim.New(sim.Config{Cloud: w.cloud, Nodes: w.Target.Client, RequireInitialize: true})
	config := manager.Config{
		Control:   w.access[0],
		Target:    w.access[1],
		Drivers:   registry.Only(registry.AnyProvider, simulated),
		Runnables: []ctrlmanager.Runnable{simulated},
		Log:       logr.Discard(),
		Settings: manager.Settings{
			Namespace:       w.Namespace,
			ConcurrentSyncs: 20,
			SetSettings:     manager.SetSettings{Overshoot: scale.Overshoot{Up: 3, Down: 1}, EnforceMinReadySeconds: true},
		},
	}
	for _, change := range changes {
		change(&config)
	}
	ctx, cancel := context.WithCancel(context.Background()) // the test's context is canceled before the cleanup
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx, config) }()
	stop = func() {
		if ctx.Err() != nil {
			return
		}
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the manager ends with %v", err)
		}
	}
	w.t.Cleanup(stop)
	return stop
}

// elected enables leader election. Managers release the leases when stopped, and do not lose them on a busy
// machine.
func elected(config *manager.Config) {
	config.Election = manager.Election{Enabled: true, LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 200 * time.Millisecond}
}

func (w *clusters) create(objects ...client.Object) {
	w.t.Helper()
	for _, object := range objects {
		if err := w.Client.Create(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}
	}
}

// join creates objects in the target cluster, and writes their status.
func (w *clusters) join(objects ...client.Object) {
	w.t.Helper()
	for _, object := range objects {
		shall := object.DeepCopyObject().(client.Object)
		if err := w.Target.Client.Create(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}
		shall.SetResourceVersion(object.GetResourceVersion())
		if _, has := object.(*corev1.PersistentVolumeClaim); has {
			continue
		}
		if err := w.Target.Client.Status().Update(w.t.Context(), shall); client.IgnoreNotFound(err) != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *clusters) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.Namespace, Name: name}
}

// own returns a name that is unique among the nodes of all tests, since nodes have no namespace.
func (w *clusters) own(name string) string { return name + "-" + w.Namespace }

func (w *clusters) patch(object client.Object, merge string) {
	w.t.Helper()
	if err := w.Client.Patch(w.t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(merge))); err != nil {
		w.t.Fatal(err)
	}
}

// secret and class create the objects that machines need.
func (w *clusters) secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: w.meta(name), Data: map[string][]byte{"userData": []byte("x")}}
}

func (w *clusters) class(name, providerSpec string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta: w.meta(name), Provider: "sim", ProviderSpec: runtime.RawExtension{Raw: []byte(providerSpec)},
		SecretRef: &corev1.SecretReference{Namespace: w.Namespace, Name: name},
	}
}

// classes creates several classes, each with a Secret.
func (w *clusters) classes(specs map[string]string) {
	w.t.Helper()
	for name, spec := range specs {
		w.create(w.secret(name), w.class(name, spec))
	}
}

func (w *clusters) machine(name, class string, changes ...func(*v1alpha1.Machine)) *v1alpha1.Machine {
	w.t.Helper()
	machine := &v1alpha1.Machine{
		ObjectMeta: w.meta(name), Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}},
	}
	for _, change := range changes {
		change(machine)
	}
	w.create(machine)
	return machine
}

// within sets the timeouts of a Machine.
func within(creation, health time.Duration) func(*v1alpha1.Machine) {
	return func(m *v1alpha1.Machine) {
		m.Spec.MachineConfiguration = &v1alpha1.MachineConfiguration{
			MachineCreationTimeout: &metav1.Duration{Duration: creation}, MachineHealthTimeout: &metav1.Duration{Duration: health},
		}
	}
}

// set returns a MachineSet whose Machines have a class.
func (w *clusters) set(name, class string, replicas int32) *v1alpha1.MachineSet {
	labels := map[string]string{"pool": name}
	return &v1alpha1.MachineSet{ObjectMeta: w.meta(name), Spec: v1alpha1.MachineSetSpec{
		Replicas: replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: w.template(labels, class),
	}}
}

func (w *clusters) deployment(name, class string, replicas int32) *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": name}
	return &v1alpha1.MachineDeployment{ObjectMeta: w.meta(name), Spec: v1alpha1.MachineDeploymentSpec{
		Replicas: replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: w.template(labels, class),
	}}
}

func (w *clusters) template(labels map[string]string, class string) v1alpha1.MachineTemplateSpec {
	return v1alpha1.MachineTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: class}},
	}
}

// soon waits until a check succeeds.
func (w *clusters) soon(t *testing.T, what string, check func(g gomega.Gomega)) {
	t.Helper()
	gomega.NewWithT(t).Eventually(check).WithTimeout(env.WaitTimeout).WithPolling(200*time.Millisecond).Should(gomega.Succeed(), what)
}

// reaches waits until a Machine is in a phase.
func (w *clusters) reaches(t *testing.T, name string, phase v1alpha1.MachinePhase) *v1alpha1.Machine {
	t.Helper()
	machine := &v1alpha1.Machine{ObjectMeta: w.meta(name)}
	w.soon(t, name+" is "+string(phase), func(g gomega.Gomega) {
		g.Expect(w.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(phase), machine.Status.LastOperation.Description)
	})
	return machine
}

// gone waits until an object no longer exists.
func (w *clusters) gone(t *testing.T, object client.Object) {
	t.Helper()
	w.soon(t, object.GetName()+" is gone", func(g gomega.Gomega) {
		err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object)
		g.Expect(client.IgnoreNotFound(err)).To(gomega.Succeed())
		g.Expect(err).To(gomega.HaveOccurred())
	})
}

// machinesOf returns the Machines with the label of a pool.
func (w *clusters) machinesOf(g gomega.Gomega, label, pool string) []v1alpha1.Machine {
	list := &v1alpha1.MachineList{}
	g.Expect(w.Client.List(w.t.Context(), list, client.InNamespace(w.Namespace), client.MatchingLabels{label: pool})).To(gomega.Succeed())
	return list.Items
}

// only waits for the single Machine of a pool.
func (w *clusters) only(t *testing.T, label, pool string) *v1alpha1.Machine {
	t.Helper()
	var found *v1alpha1.Machine
	w.soon(t, "there is one machine of "+pool, func(g gomega.Gomega) {
		machines := w.machinesOf(g, label, pool)
		g.Expect(machines).To(gomega.HaveLen(1))
		found = &machines[0]
	})
	return found
}

// run runs the command, and returns its exit status and output.
func (w *clusters) run(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	args = append([]string{"explain"}, args...)
	if len(args) < 5 || args[len(args)-2] != "--target-kubeconfig" {
		args = append(args, "--target-kubeconfig", w.target)
	}
	status = Main(Program{Args: append(args, "-n", w.Namespace, "--control-kubeconfig", w.control), Stdout: &out, Stderr: &errs})
	return status, out.String(), errs.String()
}

// response is the expected output for an object.
type response struct {
	verdict report.Verdict
	// cause and code are those of the first finding. If the Machine is gone, that finding is the reason for its
	// deletion.
	cause report.Cause
	code  string
	// next requires the time of the next retry in the output.
	next bool
	// wantText are further texts that the output must contain.
	wantText []string
}

// asks waits until the command prints the expected output, as JSON and as text.
func (w *clusters) asks(t *testing.T, kind, name string, want response, more ...string) {
	t.Helper()
	var text string
	defer func() {
		if t.Failed() {
			t.Logf("millwright explain %s %s:\n%s", kind, name, text)
		}
	}()
	w.soon(t, "the explanation of "+name, func(g gomega.Gomega) {
		status, out, errs := w.run(append([]string{kind, name, "-o", "json"}, more...)...)
		g.Expect(status).To(gomega.BeZero(), errs)
		got := report.Report{}
		g.Expect(json.Unmarshal([]byte(out), &got)).To(gomega.Succeed())
		_, text, _ = w.run(append([]string{kind, name}, more...)...)
		g.Expect(got.Verdict).To(gomega.Equal(want.verdict))
		findings := got.Why
		if want.verdict == report.Gone {
			findings = got.Replaced
		}
		first := report.Finding{}
		if len(findings) > 0 {
			first = findings[0]
		}
		g.Expect(first.Cause).To(gomega.Equal(want.cause), fmt.Sprint(findings))
		g.Expect(first.Code).To(gomega.Equal(want.code))
		if want.next {
			g.Expect(got.Next).NotTo(gomega.BeEmpty())
			g.Expect(got.Next[0].At).To(gomega.BeTemporally(">", time.Now()))
		}
		for _, part := range want.wantText {
			g.Expect(strings.ReplaceAll(text, w.Namespace, "NS")).To(gomega.ContainSubstring(part))
		}
		g.Expect(got.Unread).To(gomega.BeEmpty())
	})
}
