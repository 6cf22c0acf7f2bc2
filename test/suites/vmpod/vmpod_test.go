package vmpod

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestHypervisorPod_RunsVM installs the manifests of config/vm in a cluster whose kubelet runs the VM controller and
// hypervisors, in a namespace that enforces the Pod Security level "restricted".
func TestHypervisorPod_RunsVM(t *testing.T) {
	tier.All(t)
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, filepath.Join(root, "internal", "vm", "hypervisor", "testdata"), "node")
	p.install()
	vm := p.create("guest")
	waiting := p.createStuck()
	p.runs(vm)
	p.isConfined(vm)
	p.opensPort(vm)
	p.consoleWorks(vm)
	p.survivesKill(vm)
	p.survivesEviction(vm)
	p.reportsWhyStuck(waiting)
	p.leavesNothing(vm)
}

// create creates a VM with a disk on a local volume that is initialized from an image. Its guest echoes its console
// input.
func (p *place) create(name string) *vmv1alpha1.VirtualMachine {
	p.Helper()
	p.must(p.client.Create(p.Context(), p.localVolume(name)))
	vm := p.vm(name)
	vm.Spec.InitialImage = &vmv1alpha1.InitialImage{URL: "http://" + imageServer + "/echo.img"}
	vm.Spec.MigrateStrategy = vmv1alpha1.MigrateCold // there is no other host
	vm.Spec.VolumeClaimTemplate = claimTemplate(ptr.To(""))
	vm.Spec.Ports = []vmv1alpha1.Port{{Name: "http", Port: 80}}
	p.must(p.client.Create(p.Context(), vm))
	return vm
}

func (p *place) vm(name string) *vmv1alpha1.VirtualMachine {
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: p.env.Namespace, Name: name}}
	vm.Spec.Memory = ptr.To(resource.MustParse("32Mi"))
	return vm
}

func claimTemplate(class *string) *vmv1alpha1.VolumeClaimTemplate {
	return &vmv1alpha1.VolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: class,
		Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
	}}
}

// localVolume creates a directory owned by root. The kubelet makes it accessible to the group of the hypervisor.
func (p *place) localVolume(name string) *corev1.PersistentVolume {
	p.Helper()
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: p.env.Namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			ClaimRef:               &corev1.ObjectReference{Namespace: p.env.Namespace, Name: name}, // reserved for this claim
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: p.TempDir()}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{p.node.Name}}},
			}}}},
		},
	}
}

// ready returns the condition Ready, or an empty one if there is none.
func (p *place) ready(vm *vmv1alpha1.VirtualMachine) metav1.Condition {
	p.must(p.client.Get(p.Context(), client.ObjectKeyFromObject(vm), vm))
	if found := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionReady); found != nil {
		return *found
	}
	return metav1.Condition{}
}

// runs waits until the guest runs, and has reported that on its console.
func (p *place) runs(vm *vmv1alpha1.VirtualMachine) {
	p.Helper()
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.node.Done()).NotTo(gomega.BeClosed())
		g.Expect(p.ready(vm).Status).To(gomega.Equal(metav1.ConditionTrue), "%+v", vm.Status)
		text, status := program.Run(p.T, "vm", "logs", vm.Name, "-n", vm.Namespace, "--kubeconfig", p.kubeconfig)
		g.Expect(status).To(gomega.BeZero(), text)
		g.Expect(text).NotTo(gomega.BeEmpty())
	})
}

// qemu returns the process of a VM's guest.
func (p *place) qemu(vm *vmv1alpha1.VirtualMachine) int {
	p.Helper()
	found := program.Processes(p.T, vm.Spec.UUID, "qemu-system-x86_64")
	if len(found) != 1 {
		p.Fatalf("the processes of the guest: %v", found)
	}
	return found[0].PID
}

func (p *place) status(pid int) string {
	p.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	p.must(err)
	return string(text)
}

var parent = regexp.MustCompile(`(?m)^PPid:\t(\d+)$`)

// hypervisor returns the process that started QEMU.
func (p *place) hypervisor(vm *vmv1alpha1.VirtualMachine) int {
	p.Helper()
	pid, err := strconv.Atoi(parent.FindStringSubmatch(p.status(p.qemu(vm)))[1])
	p.must(err)
	return pid
}

// isConfined checks the confinement of the hypervisor and QEMU in the kernel.
func (p *place) isConfined(vm *vmv1alpha1.VirtualMachine) {
	p.Helper()
	const none = "0000000000000000"
	for _, pid := range []int{p.hypervisor(vm), p.qemu(vm)} {
		status := p.status(pid)
		for key, want := range map[string]string{
			"Uid": "65532\t65532\t65532\t65532", "Gid": "65532\t65532\t65532\t65532", "NoNewPrivs": "1", "Seccomp": "2",
			"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
		} {
			if line := key + ":\t" + want + "\n"; !strings.Contains(status, line) {
				p.Errorf("the status of a process has no %q:\n%s", line, status)
			}
		}
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		p.must(err)
		for line := range strings.Lines(string(mounts)) {
			if fields := strings.Fields(line); fields[4] == "/" && !strings.HasPrefix(fields[5], "ro,") {
				p.Errorf("a process may write to its root: %s", line)
			}
		}
	}
}

// opensPort checks that the hypervisor listens on a privileged port, and reports that the guest, which has no network
// stack, does not accept connections.
func (p *place) opensPort(vm *vmv1alpha1.VirtualMachine) {
	p.Helper()
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.client.Get(p.Context(), client.ObjectKeyFromObject(vm), vm)).To(gomega.Succeed())
		condition := meta.FindStatusCondition(vm.Status.Conditions, vmv1alpha1.ConditionGuestReady)
		g.Expect(condition).NotTo(gomega.BeNil())
		g.Expect(condition.Message).To(gomega.Equal("port 80 did not respond within 4s"))
	})
	sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp6", p.hypervisor(vm)))
	p.must(err)
	if !listensOn80.Match(sockets) {
		p.Errorf("the hypervisor does not listen on port 80:\n%s", sockets)
	}
}

// listensOn80 matches a socket in the state LISTEN at any address.
var listensOn80 = regexp.MustCompile(`: 0{32}:0050 0{32}:0000 0A `)

// consoleWorks types to the guest, which echoes the input.
func (p *place) consoleWorks(vm *vmv1alpha1.VirtualMachine) {
	p.Helper()
	command := program.Command(p.Context(), "vm", "console", vm.Name, "-n", vm.Namespace, "--kubeconfig", p.kubeconfig)
	stdin, err := command.StdinPipe()
	p.must(err)
	console := program.StartOther(p.T, command)
	defer console.Kill()
	p.eventually(func(g gomega.Gomega) {
		_, err := stdin.Write([]byte("hello "))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(bytes.Contains([]byte(console.Output.String()), []byte("hello"))).To(gomega.BeTrue(), console.Output.String())
	})
}

// next waits until another hypervisor runs the guest on the same disk.
func (p *place) next(vm *vmv1alpha1.VirtualMachine, after vmv1alpha1.VirtualMachineAuthority) {
	p.Helper()
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.ready(vm).Status).To(gomega.Equal(metav1.ConditionTrue), "%+v", vm.Status)
		g.Expect(vm.Status.ActivePodUID).NotTo(gomega.Equal(after.ActivePodUID))
		g.Expect(vm.Status.VolumeClaimName).To(gomega.Equal(after.VolumeClaimName))
	})
	p.runs(vm)
}

// survivesKill kills the first process of the container, and checks that the guest is restarted in another Pod.
func (p *place) survivesKill(vm *vmv1alpha1.VirtualMachine) {
	p.Helper()
	before := vm.Status.VirtualMachineAuthority
	p.must(syscall.Kill(p.hypervisor(vm), syscall.SIGKILL))
	p.next(vm, before)
}

// survivesEviction evicts the Pod, and checks the same.
func (p *place) survivesEviction(vm *vmv1alpha1.VirtualMachine) {
	p.Helper()
	before := vm.Status.VirtualMachineAuthority
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: before.ActivePodName}}
	p.must(p.client.SubResource("eviction").Create(p.Context(), pod, &policyv1.Eviction{}))
	p.next(vm, before)
}

// leavesNothing deletes the VM, and checks that nothing remains.
func (p *place) leavesNothing(vm *vmv1alpha1.VirtualMachine) {
	p.Helper()
	p.must(p.client.Delete(p.Context(), vm))
	p.eventually(func(g gomega.Gomega) {
		g.Expect(client.IgnoreNotFound(p.client.Get(p.Context(), client.ObjectKeyFromObject(vm), vm))).To(gomega.Succeed())
		of := []client.ListOption{client.InNamespace(vm.Namespace), client.MatchingLabels{vmv1alpha1.LabelVM: vm.Name}}
		pods, claims := &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}
		g.Expect(p.client.List(p.Context(), pods, of...)).To(gomega.Succeed())
		g.Expect(p.client.List(p.Context(), claims, of...)).To(gomega.Succeed())
		g.Expect(pods.Items).To(gomega.BeEmpty())
		g.Expect(claims.Items).To(gomega.BeEmpty())
		g.Expect(program.Processes(p.T, vm.Spec.UUID, "qemu-system-x86_64")).To(gomega.BeEmpty())
	})
}
