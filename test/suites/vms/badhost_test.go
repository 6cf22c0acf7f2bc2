package vms

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestVirtualMachine_WaitsForQEMU checks that a VM reports that QEMU is missing, and starts when QEMU is available.
func TestVirtualMachine_WaitsForQEMU(t *testing.T) {
	tier.All(t)
	c := prepare(t, "--hosts", "1")
	c.environment = []string{"PATH=" + t.TempDir()}
	c.start()
	c.endByForce()
	c.create(blankVM("patient"))
	c.awaitMessageAndEvent("patient", vmpb.EndNoQEMU, "qemu")
	c.stop()
	c.environment = nil
	c.start()
	c.awaitRunning("patient")
}

func asStatus(err error, target *apierrors.APIStatus) bool { return errors.As(err, target) }

// handmade returns a Pod that imitates those of a VM controller.
func handmade(name string, command []string, spec string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			NodeSelector:  map[string]string{vmv1alpha1.HostKey: ""},
			Tolerations:   []corev1.Toleration{{Key: vmv1alpha1.HostKey, Operator: corev1.TolerationOpExists}},
			// A host does not run Pods with a token for another audience, which every Pod has unless it opts out.
			AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{
				Name: "hypervisor", Image: "none", Command: command,
				Env: []corev1.EnvVar{{Name: vmpb.EnvSpec, Value: spec}},
			}},
		},
	}
}

func (c *cluster) awaitFailed(name string) *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{}
	c.eventually(soon, func(g gomega.Gomega) {
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, pod)).To(gomega.Succeed())
		g.Expect(pod.Status.Phase).To(gomega.Equal(corev1.PodFailed))
	})
	return pod
}

// malformedSpec starts hypervisors with an invalid VMSpec.
func malformedSpec(c *cluster) func(*cluster) {
	return func(c *cluster) {
		for name, one := range map[string]struct{ spec, want string }{
			"not-a-spec":   {"nonsense!", "METROPOLIS_VM_SPEC: spec: is neither JSON nor base64"},
			"half-a-spec":  {`{"name":`, "METROPOLIS_VM_SPEC: spec: cannot be parsed as JSON"},
			"empty-spec":   {`{}`, "METROPOLIS_VM_SPEC: name: is required"},
			"wrong-number": {`{"name":"a","resources":{"cpus":-1}}`, "METROPOLIS_VM_SPEC: spec: cannot be parsed as JSON"},
		} {
			root := filepath.Join(c.dir, name)
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(vmpb.TerminationMessagePath)), 0o700); err != nil {
				c.t.Fatal(err)
			}
			command := exec.Command(os.Args[0], "hypervisor")
			command.Env = []string{"PATH=" + os.Getenv("PATH"), vmpb.EnvRoot + "=" + root, vmpb.EnvListen + "=127.0.0.1:0", vmpb.EnvSpec + "=" + one.spec}
			var ended *exec.ExitError
			if err := command.Run(); !errors.As(err, &ended) || ended.ExitCode() != 1 {
				c.t.Errorf("%s ended with %v", name, err)
			}
			left := terminationIn(c.t, root)
			if left.Reason != vmpb.EndInvalidSpec || !strings.HasPrefix(left.Message, one.want) {
				c.t.Errorf("%s left %+v, want %q", name, left, one.want)
			}
		}
	}
}

// terminationIn reads the termination message of a hypervisor with that root.
func terminationIn(t *testing.T, root string) vmpb.Termination {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, vmpb.TerminationMessagePath))
	if err != nil {
		t.Fatal(err)
	}
	var left vmpb.Termination
	if err := json.Unmarshal(text, &left); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return left
}

// podWithoutOwner requests a hypervisor that no VirtualMachine controls.
func podWithoutOwner(c *cluster) func(*cluster) {
	c.create(handmade("pod-of-nobody", vmpb.Command(), "{}"))
	return func(c *cluster) {
		const want = "only Pods of virtual machines are supported"
		pod := c.awaitFailed("pod-of-nobody")
		if pod.Status.Reason != "Unsupported" || !strings.Contains(pod.Status.Message, want) {
			c.t.Errorf("the pod reports %s: %s", pod.Status.Reason, pod.Status.Message)
		}
		c.awaitEvent("Pod", "pod-of-nobody", "Unsupported", want)
	}
}

// noSpace gives a VM a volume that is smaller than the disk on it.
func noSpace(images *imageServer) trial {
	return func(c *cluster) func(*cluster) {
		if os.Geteuid() != 0 {
			return func(c *cluster) { c.t.Skip("only root can mount the small file system that this needs") }
		}
		// The subtest of one outcome finishes before the VM is deleted.
		outer := c.t
		// The first image does not exist, so that the volume exists before anything is written to it.
		c.create(images.vm("no-space", images.URL+"/missing"))
		return func(c *cluster) {
			volume := c.volumeOf("no-space")
			if err := syscall.Mount("small", volume, "tmpfs", 0, "size=512k"); err != nil {
				c.t.Fatal(err)
			}
			outer.Cleanup(func() {
				if err := syscall.Unmount(volume, syscall.MNT_DETACH); err != nil {
					outer.Error(err)
				}
			})
			c.change("no-space", func(spec *vmv1alpha1.VirtualMachineSpec) { spec.InitialImage.URL = images.good })
			c.awaitMessageAndEvent("no-space", vmpb.EndNoSpace, images.good, "no space")
			c.wantNoDisk("no-space")
			if err := syscall.Mount("small", volume, "tmpfs", syscall.MS_REMOUNT, "size=8m"); err != nil {
				c.t.Fatal(err)
			}
			c.awaitRunning("no-space")
		}
	}
}

// volumeOf waits for the directory with a VM's disk.
func (c *cluster) volumeOf(vm string) string {
	c.t.Helper()
	directory := ""
	c.eventually(soon, func(g gomega.Gomega) {
		claim := &corev1.PersistentVolumeClaim{}
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "default", Name: vm}, claim)).To(gomega.Succeed())
		g.Expect(claim.Status.Phase).To(gomega.Equal(corev1.ClaimBound))
		directory = filepath.Join(c.dir, "volumes", string(claim.UID))
		g.Expect(directory).To(gomega.BeADirectory())
	})
	return directory
}

// wantNoDisk checks that there is no disk, complete or partial.
func (c *cluster) wantNoDisk(vm string) {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(c.volumeOf(vm), "*"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file, ".lock") {
			c.t.Errorf("%s has %s", vm, file)
		}
	}
}

// secondHypervisor starts a process on the disk of a running VM, with everything that its own hypervisor was
// given.
func secondHypervisor(c *cluster) func(*cluster) {
	c.create(blankVM("wanted-twice"))
	c.awaitRunning("wanted-twice")
	before := c.sight("wanted-twice")
	root := filepath.Join(c.dir, "second")
	second := c.intruder("wanted-twice", root)
	if err := second.Start(); err != nil {
		c.t.Fatal(err)
	}
	return func(c *cluster) {
		err := second.Wait()
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != 1 {
			c.t.Errorf("the second hypervisor ended with %v", err)
		}
		if left := terminationIn(c.t, root); left.Reason != vmpb.EndDiskLocked {
			c.t.Errorf("the second hypervisor left %+v", left)
		}
		c.wantUndisturbed("wanted-twice", before)
	}
}

// intruder returns a hypervisor like that of a VM, with another root.
func (c *cluster) intruder(vm, root string) *exec.Cmd {
	c.t.Helper()
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: "default", Name: c.vm(vm).Status.ActivePodName}
	if err := c.client.Get(context.Background(), key, pod); err != nil {
		c.t.Fatal(err)
	}
	for _, dir := range []string{"dev", "var/lib", "var/run/secrets"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			c.t.Fatal(err)
		}
	}
	tokens, err := filepath.Glob(filepath.Join(c.dir, "hosts/*/pods/*"+string(pod.UID)+"*/volumes/token"))
	if err != nil || len(tokens) != 1 {
		c.t.Fatalf("directories with the pod's token: %v, %v", tokens, err)
	}
	for link, target := range map[string]string{
		filepath.Dir(vmpb.RootDiskPath): c.volumeOf(vm), filepath.Dir(vmpb.TokenPath): tokens[0],
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			c.t.Fatal(err)
		}
	}
	command := exec.Command(os.Args[0], "hypervisor")
	command.Env = []string{"PATH=" + os.Getenv("PATH"), vmpb.EnvRoot + "=" + root, vmpb.EnvListen + "=127.0.0.1:0"}
	for _, variable := range pod.Spec.Containers[0].Env {
		switch variable.Name {
		case vmpb.EnvSpec, vmpb.EnvAuthority, vmpb.EnvUserNetwork, vmpb.EnvHostPorts, vmpb.EnvAccelerator:
			command.Env = append(command.Env, variable.Name+"="+strings.ReplaceAll(variable.Value, "$$", "$"))
		}
	}
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command
}
