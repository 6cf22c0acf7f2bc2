package hostrunner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/local/process"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/env"
)

// timeout limits operations that take less than five seconds on an idle machine.
const timeout = env.WaitTimeout

// testHost is a host, with or without a running host runner.
type testHost struct {
	*env.Env
	t      *testing.T
	client kubernetes.Interface
	config Config
}

// newTestHost lets the test run in parallel: hosts share only the API server.
func newTestHost(t *testing.T, options ...env.Option) *testHost {
	t.Helper()
	t.Parallel()
	e := env.New(t, options...)
	client, err := kubernetes.NewForConfig(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &testHost{Env: e, t: t, client: client}
	b.config = Config{Name: "host-of-" + e.Namespace, Dir: t.TempDir(), Program: program}
	if b.config.REST, err = e.ControlPlane.UserConfig("system:node:"+b.config.Name, "system:nodes", Group); err != nil {
		t.Fatal(err)
	}
	for _, manifests := range []string{"local/hosts.yaml", "policy/hosts.yaml"} {
		if err := controlplane.Apply(t.Context(), e.Admin, config.Files, manifests, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(b.killAll)
	return b
}

// killAll kills all processes of the host.
func (b *testHost) killAll() {
	entries, _ := os.ReadDir(layout(b.config.Dir).pods())
	for _, entry := range entries {
		p, err := process.Open(layout(b.config.Dir).pod(entry.Name()).process())
		if err == nil {
			p.Kill()
			<-p.Ended()
		}
	}
}

// start runs a host runner in this process until the returned function is called or the test is complete.
func (b *testHost) start() (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, b.config) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("the host runner ended with %v", err)
		}
	}
	b.t.Cleanup(stop)
	return stop
}

// startKillable runs a host runner in another process. The returned function kills it.
func (b *testHost) startKillable() (kill func()) {
	b.t.Helper()
	kubeconfig := filepath.Join(b.t.TempDir(), "kubeconfig")
	if err := b.ControlPlane.WriteKubeconfig(kubeconfig, "system:node:"+b.config.Name, "system:nodes", Group); err != nil {
		b.t.Fatal(err)
	}
	description, err := json.Marshal(hostDescription{
		Name: b.config.Name, Dir: b.config.Dir, Program: b.config.Program, Kubeconfig: kubeconfig,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	command := exec.Command(b.config.Program)
	command.Env = append(os.Environ(), hostVariable+"="+string(description))
	command.Stdout, command.Stderr = b.t.Output(), b.t.Output()
	if err := command.Start(); err != nil {
		b.t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			command.Process.Kill() // Wait reports the error
			command.Wait()         // it was killed
		}
	}
	b.t.Cleanup(kill)
	return kill
}

// vm creates a VirtualMachine.
func (b *testHost) vm(name string) *vmv1alpha1.VirtualMachine {
	b.t.Helper()
	scheme := env.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		b.t.Fatal(err)
	}
	client, err := client.New(b.Admin, client.Options{Scheme: scheme})
	if err != nil {
		b.t.Fatal(err)
	}
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: b.Namespace}}
	if err := client.Create(b.t.Context(), vm); err != nil {
		b.t.Fatal(err)
	}
	return vm
}

// ownedBy makes the Pod belong to a VirtualMachine.
func ownedBy(vm *vmv1alpha1.VirtualMachine) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		owner := metav1.NewControllerRef(vm, vmv1alpha1.SchemeGroupVersion.WithKind(vmv1alpha1.VirtualMachineKind))
		pod.OwnerReferences = []metav1.OwnerReference{*owner}
	}
}

// pod creates a Pod like those of the VM controller, bound to the host. See beHypervisor for the behaviors of its
// process.
func (b *testHost) pod(name, does string, change ...func(*corev1.Pod)) *corev1.Pod {
	b.t.Helper()
	return b.handmade(b.client, name, does, append([]func(*corev1.Pod){ownedBy(b.vm(name))}, change...)...)
}

// handmade creates a Pod without an owner, as another user would.
func (b *testHost) handmade(as kubernetes.Interface, name, does string, change ...func(*corev1.Pod)) *corev1.Pod {
	b.t.Helper()
	created, err := as.CoreV1().Pods(b.Namespace).Create(b.t.Context(), b.describe(name, does, change...), metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return created
}

// describe returns such a Pod.
func (b *testHost) describe(name, does string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: b.Namespace},
		Spec: corev1.PodSpec{
			NodeName:                      b.config.Name,
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](30),
			Containers: []corev1.Container{{
				Name: "hypervisor", Image: "example/millwright", Command: vmpb.Command(),
				Env:          []corev1.EnvVar{{Name: behavior, Value: does}},
				VolumeMounts: []corev1.VolumeMount{{Name: "run", MountPath: vmpb.DirRun}},
			}},
			Volumes: []corev1.Volume{{Name: "run", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func withEnv(name, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

func withVolume(name, path string, source corev1.VolumeSource) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
}

func withGrace(seconds int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = &seconds }
}

// eventually polls until the condition holds. On failure, it prints the state.
func (b *testHost) eventually(what string, condition func() (bool, any)) {
	b.t.Helper()
	gomega.NewWithT(b.t).Eventually(func(g gomega.Gomega) {
		holds, state := condition()
		g.Expect(holds).To(gomega.BeTrue(), "%s; the state is %+v", what, state)
	}).WithTimeout(timeout).WithPolling(10 * time.Millisecond).Should(gomega.Succeed())
}

// await waits until the Pod is in a phase, and returns the Pod.
func (b *testHost) await(name string, phase corev1.PodPhase) *corev1.Pod {
	b.t.Helper()
	var pod *corev1.Pod
	b.eventually("phase "+string(phase), func() (bool, any) {
		var err error
		pod, err = b.client.CoreV1().Pods(b.Namespace).Get(b.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		return pod.Status.Phase == phase, pod.Status
	})
	return pod
}

// awaitReady waits until the Pod runs and its process is ready. It returns the process ID.
func (b *testHost) awaitReady(name string) int {
	b.t.Helper()
	pod := b.await(name, corev1.PodRunning)
	b.awaitLog(pod, "ready\n")
	return b.pid(pod)
}

// awaitLog waits until the Pod's process has printed exactly this.
func (b *testHost) awaitLog(pod *corev1.Pod, want string) {
	b.t.Helper()
	b.eventually(fmt.Sprintf("a log of %q", want), func() (bool, any) {
		log, err := os.ReadFile(b.location(pod).log())
		return string(log) == want, err
	})
}

func (b *testHost) pid(pod *corev1.Pod) int {
	b.t.Helper()
	var record struct {
		PID int `json:"pid"`
	}
	b.eventually("the record", func() (bool, any) {
		content, err := os.ReadFile(b.location(pod).path("process.json"))
		if err == nil {
			err = json.Unmarshal(content, &record)
		}
		return record.PID != 0, err
	})
	return record.PID
}

func (b *testHost) location(pod *corev1.Pod) podDir {
	return layout(b.config.Dir).pod(string(pod.UID))
}

func (b *testHost) delete(name string, options metav1.DeleteOptions) {
	b.t.Helper()
	if err := b.client.CoreV1().Pods(b.Namespace).Delete(b.t.Context(), name, options); err != nil {
		b.t.Fatal(err)
	}
}

// awaitGone waits until the Pod and its directory are gone.
func (b *testHost) awaitGone(pod *corev1.Pod) {
	b.t.Helper()
	b.eventually("the Pod's end", func() (bool, any) {
		have, err := b.client.CoreV1().Pods(b.Namespace).Get(b.t.Context(), pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), have
	})
	b.eventually("the removal of the directory", func() (bool, any) {
		_, err := os.Stat(string(b.location(pod)))
		return os.IsNotExist(err), b.location(pod)
	})
}

// awaitEvent waits for an event about the Pod with the reason.
func (b *testHost) awaitEvent(pod *corev1.Pod, reason string) {
	b.t.Helper()
	b.eventually("event "+reason, func() (bool, any) { return b.hasEvent(pod, reason, "") })
}

// hasEvent reports whether the Pod has an event with the reason and text, and returns all its events.
func (b *testHost) hasEvent(pod *corev1.Pod, reason, wantText string) (bool, any) {
	b.t.Helper()
	events, err := b.client.CoreV1().Events(b.Namespace).List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return e.Reason == reason && e.InvolvedObject.UID == pod.UID && strings.Contains(e.Message, wantText)
	}), events.Items
}
