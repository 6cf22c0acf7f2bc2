package vmcontroller

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// Values of enums of the original definitions.
const (
	modeRun           = protoreflect.EnumNumber(1)
	storageLocking    = protoreflect.EnumNumber(1)
	statusOK          = protoreflect.EnumNumber(1)
	statusTerminate   = protoreflect.EnumNumber(2)
	actionShutDown    = protoreflect.EnumNumber(2)
	originsController = "millwright://controller"
)

// TestProtocol_OldestController checks that the real hypervisor runs a guest for a VM controller built from the
// original definitions, with a specification that has no other fields, and with certificates that neither of them
// issued.
func TestProtocol_OldestController(t *testing.T) {
	tier.All(t)
	t.Parallel()
	g := gomega.NewWithT(t)
	o, by := readOrigin(t), newIssuer(t)
	pod, err := os.Hostname() // as in a Pod
	g.Expect(err).NotTo(gomega.HaveOccurred())
	name := "millwright://vm/default/web/" + pod
	c := o.serve(t, by, name)
	spec, err := proto.Marshal(o.message("VMSpec", fields{
		"name": "web", "namespace": "default", "mode": modeRun, "lease_mode": storageLocking, "controller_endpoint": c.address,
	}))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	root := t.TempDir()
	for _, directory := range []string{filepath.Dir(vmpb.RootDiskPath), filepath.Dir(vmpb.TerminationMessagePath)} {
		g.Expect(os.MkdirAll(filepath.Join(root, directory), 0o700)).To(gomega.Succeed())
	}
	by.lay(root, name)
	command := program.Command(context.Background(), "hypervisor")
	command.Env = append(command.Env, vmpb.EnvRoot+"="+root, vmpb.EnvListen+"=127.0.0.1:0", vmpb.EnvAccelerator+"=tcg",
		vmpb.EnvSpec+"="+base64.StdEncoding.EncodeToString(spec), vmpb.EnvCertFile+"=/tls.crt", vmpb.EnvKeyFile+"=/tls.key", vmpb.EnvAuthorityFile+"=/ca.crt")
	process := program.StartOther(t, command)
	t.Cleanup(func() {
		process.Kill()
		if t.Failed() {
			t.Logf("the hypervisor printed:\n%s", process.Output.Tail(50))
		}
	})
	eventually := func(check func(gomega.Gomega)) {
		t.Helper()
		g.Eventually(check).WithTimeout(waitTimeout).Should(gomega.Succeed())
	}
	eventually(func(g gomega.Gomega) {
		request := c.call("RunLease")
		g.Expect(request).NotTo(gomega.BeNil())
		g.Expect(request.GetUnknown()).To(gomega.BeEmpty())
		g.Expect(get(request, "us", "vm_name").String()).To(gomega.Equal("web"))
		g.Expect(get(request, "us", "namespace").String()).To(gomega.Equal("default"))
		g.Expect(get(request, "us", "pod_name").String()).To(gomega.Equal(pod))
		g.Expect(get(request, "us", "run_id").Uint()).NotTo(gomega.BeZero())
	})
	c.setStatus(statusOK)
	conn, err := grpc.NewClient("unix://"+filepath.Join(root, vmpb.SocketPath), grpc.WithTransportCredentials(insecure.NewCredentials()))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { _ = conn.Close() })
	eventually(func(g gomega.Gomega) {
		health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(health.GetStatus()).To(gomega.Equal(healthpb.HealthCheckResponse_SERVING))
	})
	// The hypervisor would migrate the VM, and is requested to shut it down. This guest does not shut down, so another
	// request terminates it.
	g.Expect(syscall.Kill(process.PID(), syscall.SIGTERM)).To(gomega.Succeed())
	eventually(func(g gomega.Gomega) {
		request := c.call("EnsureMigrationTarget")
		g.Expect(request).NotTo(gomega.BeNil())
		g.Expect(proto.Equal(get(request, "us").Message().Interface(), get(c.call("RunLease"), "us").Message().Interface())).To(gomega.BeTrue())
	})
	c.setStatus(statusTerminate)
	g.Expect(process.Wait()).To(gomega.Succeed())
	end, err := os.ReadFile(filepath.Join(root, vmpb.TerminationMessagePath))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(string(end)).To(gomega.ContainSubstring(vmpb.EndTerminated))
}

// TestProtocol_OldestHypervisor checks that the real VM controller gives a VM to a hypervisor built from the original
// definitions, in the Pod that it created, with certificates that neither of them issued.
func TestProtocol_OldestHypervisor(t *testing.T) {
	tier.All(t)
	t.Parallel()
	i, o, by := newInstallation(t), readOrigin(t), newIssuer(t)
	cert, key, authority := by.lay(t.TempDir(), originsController)
	i.leads(i.start("--identity-cert-file="+cert, "--identity-private-key-file="+key, "--identity-authority-file="+authority,
		"--hypervisor-identity-driver=csi.cert-manager.io", "--hypervisor-identity-attribute=csi.cert-manager.io/uri-sans=millwright://vm/${POD_NAMESPACE}/${VM_NAME}/${POD_NAME}"))
	vm := &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: i.vms, Name: "web"}}
	i.must(i.client.Create(t.Context(), vm))
	pod := i.podOf(vm)
	volume := pod.Spec.Volumes[len(pod.Spec.Volumes)-1].CSI
	if volume == nil || volume.VolumeAttributes["csi.cert-manager.io/uri-sans"] != "millwright://vm/${POD_NAMESPACE}/web/${POD_NAME}" {
		t.Errorf("the volumes are %+v", pod.Spec.Volumes)
	}
	spec := o.message("VMSpec", nil)
	i.must(protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal([]byte(environment(pod, vmpb.EnvSpec)), spec))
	endpoint := get(spec, "controller_endpoint").String()
	h := o.hypervisor(t, by, endpoint, get(spec, "namespace").String(), get(spec, "name").String(), pod.Name)
	next := h.runLease()
	printed, err := next()
	if err != nil || printed != statusOK {
		t.Fatalf("the run lease reports %d: %v", printed, err)
	}
	i.holds(vm, h)
	i.takesBack(vm, h)
	response, err := h.invoke("EnsureMigrationTarget", fields{"us": h.us})
	if err != nil || get(response, "action").Enum() != actionShutDown {
		t.Errorf("without Millwright's extensions, the VM can only be shut down: %v: %v", response, err)
	}
	other := o.hypervisor(t, by, endpoint, i.vms, "web", "web-other")
	if _, err := other.invoke("EnsureMigrationTarget", fields{"us": h.us}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a request on behalf of another hypervisor returned %v", err)
	}
	next = h.runLease()
	if printed, err := next(); err != nil || printed != statusOK {
		t.Fatalf("the run lease reports %d: %v", printed, err)
	}
	i.must(i.client.Delete(t.Context(), vm))
	if printed, err := next(); err != nil || printed != statusTerminate {
		t.Errorf("the run lease of a VM that is deleted reports %d: %v", printed, err)
	}
}

// takesBack makes a hypervisor request its VM under another run, as after a failed migration. A lost response has
// no effect.
func (i *installation) takesBack(vm *vmv1alpha1.VirtualMachine, h *originHypervisor) {
	i.t.Helper()
	before := proto.Clone(h.us)
	h.us.Set(h.us.Descriptor().Fields().ByName("run_id"), protoreflect.ValueOfUint64(get(h.us, "run_id").Uint()+1))
	for range 2 {
		if _, err := h.invoke("MigrationSwitchover", fields{"us": h.us, "them": before}); err != nil {
			i.t.Fatal(err)
		}
	}
	i.holds(vm, h)
	stranger := proto.Clone(before)
	stranger.ProtoReflect().Set(h.us.Descriptor().Fields().ByName("pod_name"), protoreflect.ValueOfString("web-gone"))
	if _, err := h.invoke("MigrationSwitchover", fields{"us": h.us, "them": stranger}); status.Code(err) != codes.OK {
		i.t.Errorf("a request of the hypervisor that holds the VM returned %v", err)
	}
	if _, err := h.invoke("MigrationSwitchover", fields{"us": before, "them": stranger}); status.Code(err) != codes.FailedPrecondition {
		i.t.Errorf("a request of a hypervisor that does not hold the VM returned %v", err)
	}
}

// podOf waits for the Pod of a VM.
func (i *installation) podOf(vm *vmv1alpha1.VirtualMachine) *corev1.Pod {
	i.t.Helper()
	pods := &corev1.PodList{}
	i.eventually(func(g gomega.Gomega) {
		g.Expect(i.client.List(i.t.Context(), pods, client.InNamespace(vm.Namespace), client.MatchingLabels{vmv1alpha1.LabelVM: vm.Name})).To(gomega.Succeed())
		g.Expect(pods.Items).To(gomega.HaveLen(1))
	})
	return &pods.Items[0]
}

// environment returns an environment variable of a hypervisor.
func environment(pod *corev1.Pod, name string) string {
	for _, variable := range pod.Spec.Containers[0].Env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// holds checks that a hypervisor is authoritative.
func (i *installation) holds(vm *vmv1alpha1.VirtualMachine, h *originHypervisor) {
	i.t.Helper()
	i.must(i.client.Get(i.t.Context(), client.ObjectKeyFromObject(vm), vm))
	if want := strconv.FormatUint(get(h.us, "run_id").Uint(), 10); vm.Status.ActiveRunID != want || vm.Status.ActivePodName != get(h.us, "pod_name").String() {
		i.t.Errorf("the authority is %+v, not run %s", vm.Status.VirtualMachineAuthority, want)
	}
}
