package vmpod

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/localdir"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/initrd"
	"github.com/millwright-dev/millwright/test/support/node"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestHypervisorPods_TwoHosts runs VMs on two nodes, each with a kubelet, containerd and kube-proxy of its own, whose
// Pods reach each other by IP routes. Clients connect to guests through Services.
func TestHypervisorPods_TwoHosts(t *testing.T) {
	tier.All(t)
	p := newPlace(t, peerFiles(t), "host-1", "host-2")
	p.install()
	moving, staying := p.createPeers()
	p.exchange(moving, staying)
	p.exchange(staying, moving)
	p.migratesUnderRequests(moving, staying)
	p.drains(moving, staying)
	p.stopped(moving)
	p.failsOver(moving, staying)
}

// peerFiles returns a directory with what boots a guest that runs the program peer.
func peerFiles(t *testing.T) string {
	t.Helper()
	cache, err := localdir.Cache()
	if err != nil {
		t.Fatal(err)
	}
	guest, files := filepath.Join(cache, "guest", "current"), t.TempDir()
	if _, err := os.Stat(filepath.Join(guest, "vmlinux")); err != nil {
		t.Fatalf("there is no guest to boot, run \"make guest\": %v", err)
	}
	for name, file := range map[string]string{
		"vmlinux": filepath.Join(guest, "vmlinux"), "cmdline": filepath.Join(guest, "cmdline"), "initrd": initrd.With(t, filepath.Join(guest, "initrd"), "./peer"),
	} {
		if err := os.Symlink(file, filepath.Join(files, name)); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// createPeers creates two VMs that avoid each other's host, each with a Service, and waits until clients reach them. It
// returns the one on the first host first.
func (p *place) createPeers() (first, second *peer) {
	p.Helper()
	peers := []*peer{p.createPeer("one", "10.77.0.101"), p.createPeer("two", "10.77.0.102")}
	byHost := map[string]*peer{}
	for _, created := range peers {
		p.awaitPeer(created)
		byHost[created.Status.NodeName] = created
	}
	first, second = byHost[p.nodes[0].Name], byHost[p.nodes[1].Name]
	if first == nil || second == nil {
		p.Fatalf("the VMs are on the hosts %v", byHost)
	}
	return first, second
}

// peer is a VM whose guest runs the program of that name.
type peer struct {
	*vmv1alpha1.VirtualMachine
	// name is the name of the VM, for goroutines that run while the test reads the VM again.
	name string
	// service is the address of its Service.
	service string
	boots
}

// createPeer creates a VM with a Service.
func (p *place) createPeer(name, address string, change ...func(*vmv1alpha1.VirtualMachineSpec)) *peer {
	p.Helper()
	const app = "vm.metropolis.monogon.dev/app"
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.env.Namespace, Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{app: name}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}}},
	}
	p.must(p.client.Create(p.Context(), service))
	vm := p.vm(name)
	vm.Labels = map[string]string{app: name}
	vm.Spec.Memory = ptr.To(resource.MustParse("160Mi"))
	vm.Spec.KernelBoot = &vmv1alpha1.KernelBoot{
		Kernel: vmv1alpha1.BootFile{URL: "http://" + imageServer + "/vmlinux"}, Initrd: &vmv1alpha1.BootFile{URL: "http://" + imageServer + "/initrd"},
		CommandLine: p.commandLine(),
	}
	vm.Spec.VMIPs = []string{address}
	vm.Spec.AntiAffinity = &vmv1alpha1.AntiAffinity{Group: "peers"}
	vm.Spec.Ports = []vmv1alpha1.Port{{Name: "http", Port: 80}}
	vm.Spec.ReadinessProbe = &vmv1alpha1.ReadinessProbe{HTTPPath: "/"}
	for _, change := range change {
		change(&vm.Spec)
	}
	p.must(p.client.Create(p.Context(), vm))
	return &peer{VirtualMachine: vm, name: name, service: net.JoinHostPort(service.Spec.ClusterIP, "80")}
}

// commandLine returns the command line of the guest's kernel.
func (p *place) commandLine() string {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(p.images, "cmdline"))
	p.must(err)
	return strings.TrimSpace(string(text))
}

// awaitPeer waits until all hosts reach the guest through the Service, and records its boot.
func (p *place) awaitPeer(v *peer) {
	p.Helper()
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.ready(v.VirtualMachine).Status).To(gomega.Equal(metav1.ConditionTrue), "%+v", v.Status)
		g.Expect(meta.IsStatusConditionTrue(v.Status.Conditions, vmv1alpha1.ConditionGuestReady)).To(gomega.BeTrue(), "%+v", v.Status)
		g.Expect(v.Status.Addresses).To(gomega.Equal(v.Spec.VMIPs))
		for _, from := range p.nodes {
			var err error
			v.boots, err = p.bootsOf(v, from)
			g.Expect(err).NotTo(gomega.HaveOccurred())
		}
	})
	p.Logf("%s is on %s", v.Name, v.Status.NodeName)
}

// boots are the boot IDs of a guest.
type boots struct {
	// current is the ID of this boot, and previous the ID of the boot before it from the same disk, or "none".
	current, previous string
}

// bootsOf requests the boot IDs of a guest through its Service, from a host.
func (p *place) bootsOf(v *peer, from *node.Node) (boots, error) {
	nonce := rand.Text()
	text, err := p.request(v, from, "/?nonce="+nonce)
	if err != nil {
		return boots{}, err
	}
	fields := strings.Fields(text)
	if len(fields) != 4 || fields[0] != v.name || fields[3] != nonce {
		p.Errorf("guest %s returned %q to a request with %s", v.name, text, nonce)
		return boots{}, errors.New("wrong response")
	}
	return boots{fields[1], fields[2]}, nil
}

// request sends a request to a guest through its Service, with a new connection, from a host.
func (p *place) request(v *peer, from *node.Node, path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.Context()), env.WaitTimeout)
	defer cancel()
	hosts := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, address string) (net.Conn, error) { return from.Dial(ctx, address) },
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+v.service+path, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := hosts.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}

// call is like request, and must succeed.
func (p *place) call(v *peer, path string) string {
	p.Helper()
	text, err := p.request(v, p.node, path)
	if err != nil {
		p.Fatalf("%s of guest %s: %v", path, v.Name, err)
	}
	return text
}

// exchange makes a guest exchange data with another one.
func (p *place) exchange(from, with *peer) {
	p.Helper()
	p.call(from, "/exchange?with="+with.Status.Addresses[0])
}

// migratesUnderRequests migrates a VM to the host of another one, while clients on both hosts send requests to it, and
// the other guest keeps a connection to it. None of them is interrupted.
func (p *place) migratesUnderRequests(v, other *peer) {
	p.Helper()
	p.call(other, "/hold?with="+v.Status.Addresses[0])
	held, clients := p.exchangesMore(other, 0), p.sendRequests(v)
	p.migrate(v, other.Status.NodeName)
	clients.end()
	p.exchangesMore(other, held)
	p.exchange(v, other)
}

// migrate migrates a VM as a user does.
func (p *place) migrate(v *peer, to string) {
	p.Helper()
	from := v.Status.NodeName
	text, status := program.Run(p.T, "vm", "migrate", v.Name, "-n", v.Namespace, "--kubeconfig", p.kubeconfig, "--to", to)
	if status != 0 || !strings.Contains(text, "migrated from "+from+" to "+to) {
		p.Fatalf("vm migrate: status %d\n%s", status, text)
	}
	p.moved(v, from, to)
}

// moved checks that a guest has moved to another host without a reboot.
func (p *place) moved(v *peer, from, to string) {
	p.Helper()
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.ready(v.VirtualMachine).Status).To(gomega.Equal(metav1.ConditionTrue), "%+v", v.Status)
		g.Expect(v.Status.NodeName).To(gomega.Equal(to))
		events := &corev1.EventList{}
		g.Expect(p.client.List(p.Context(), events, client.InNamespace(v.Namespace))).To(gomega.Succeed())
		g.Expect(events.Items).To(gomega.ContainElement(gomega.And(
			gomega.HaveField("InvolvedObject.Name", v.Name), gomega.HaveField("Reason", "Migrated"),
			gomega.HaveField("Message", gomega.HavePrefix("Migrated from node "+from+" to node "+to)))))
		p.notRebooted(g, v)
	})
}

// notRebooted checks that the kernel of a guest is still the same.
func (p *place) notRebooted(g gomega.Gomega, v *peer) {
	now, err := p.bootsOf(v, p.node)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	if now != v.boots {
		p.Errorf("the boot IDs of guest %s are %+v, and were %+v", v.Name, now, v.boots)
	}
}

// drains drains the second host, as an administrator does. Its VMs move to the first one, and connections between them
// continue. Clients on both hosts are not interrupted.
func (p *place) drains(peers ...*peer) {
	p.Helper()
	from := p.nodes[1].Name
	held, clients := p.exchangesMore(peers[1], 0), p.sendRequests(peers[0])
	p.kubectl("", "drain", from, "--delete-emptydir-data")
	for _, v := range peers {
		p.moved(v, from, p.node.Name)
	}
	clients.end()
	p.exchangesMore(peers[1], held)
	p.kubectl("", "uncordon", from)
}

// stopped terminates the hypervisor of a VM on the second host as the kubelet does when it shuts the host down or evicts the
// Pod, without deleting the Pod. The VM moves to the first host.
func (p *place) stopped(v *peer) {
	p.Helper()
	from, to := p.nodes[1].Name, p.node.Name
	p.migrate(v, from)
	p.must(syscall.Kill(p.hypervisor(v.VirtualMachine), syscall.SIGTERM))
	p.moved(v, from, to)
}

// failsOver disconnects the second host, where a VM runs with a lease and a disk that both hosts have. It starts on the
// first host when its first guest has ended. Other VMs are not affected.
func (p *place) failsOver(others ...*peer) {
	p.Helper()
	p.must(p.client.Create(p.Context(), p.sharedVolume("leased")))
	p.kubectl("", "cordon", p.node.Name)
	v := p.createPeer("leased", "10.77.0.103", func(spec *vmv1alpha1.VirtualMachineSpec) {
		spec.LeaseMode, spec.LeaseDurationSeconds = vmv1alpha1.LeaseFullLeases, leaseSeconds
		spec.VolumeClaimTemplate = claimTemplate(ptr.To(""))
		spec.VolumeClaimTemplate.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	p.awaitPeer(v)
	p.kubectl("", "uncordon", p.node.Name)
	before := v.DeepCopy()
	if before.Status.NodeName != p.nodes[1].Name {
		p.Fatalf("the VM is on %s", before.Status.NodeName)
	}
	first := p.qemu(v.VirtualMachine)
	guests := p.watchGuests(v)
	p.nodes[1].Disconnect()
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.ready(v.VirtualMachine).Status).To(gomega.Equal(metav1.ConditionTrue), "%+v", v.Status)
		g.Expect(v.Status.NodeName).To(gomega.Equal(p.node.Name))
		now, err := p.bootsOf(v, p.node)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(now.previous).To(gomega.Equal(v.current))
	})
	guests.end()
	if v.Status.Lease.FencingToken <= before.Status.Lease.FencingToken || v.Status.VolumeClaimName != before.Status.VolumeClaimName || p.qemu(v.VirtualMachine) == first {
		p.Errorf("the VM was %+v, and is %+v", before.Status, v.Status)
	}
	for _, other := range others {
		p.notRebooted(gomega.NewWithT(p.T), other)
	}
	p.nodes[1].Reconnect()
	p.eventually(func(g gomega.Gomega) {
		pods := &corev1.PodList{}
		g.Expect(p.client.List(p.Context(), pods, client.InNamespace(v.Namespace), client.MatchingLabels{vmv1alpha1.LabelVM: v.Name})).To(gomega.Succeed())
		g.Expect(pods.Items).To(gomega.HaveLen(1))
		g.Expect(pods.Items[0].Name).To(gomega.Equal(v.Status.ActivePodName))
	})
}

// leaseSeconds is the duration of the lease. It expires before the node controller notices that the host does not
// respond, so that the scheduler could still choose this host. It does not expire while a hypervisor or the VM controller
// is stalled for some seconds, as on a busy machine.
const leaseSeconds = 30

// sharedVolume creates a directory that both hosts mount.
func (p *place) sharedVolume(claim string) *corev1.PersistentVolume {
	p.Helper()
	dir := p.TempDir()
	p.must(os.Chmod(dir, 0o777)) // the kubelet does not change the owner of such a volume
	volume := p.localVolume(claim)
	volume.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	volume.Spec.NodeAffinity = nil
	volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}
	return volume
}

// guests watches how many processes run the guest of a VM.
type guests struct {
	stop    func()
	running sync.WaitGroup
}

// watchGuests checks that only one process at a time runs the guest of a VM.
func (p *place) watchGuests(v *peer) *guests {
	p.Helper()
	uuid, ended := v.Spec.UUID, make(chan struct{})
	w := &guests{stop: sync.OnceFunc(func() { close(ended) })}
	p.Cleanup(w.end)
	w.running.Go(func() {
		for {
			if found := program.Processes(p.T, uuid, "qemu-system-x86_64"); len(found) > 1 {
				p.Errorf("several processes run guest %s: %v", v.name, found)
			}
			select {
			case <-ended:
				return
			case <-time.After(10 * time.Millisecond): // there are no events of processes
			}
		}
	})
	return w
}

func (w *guests) end() {
	w.stop()
	w.running.Wait()
}

// exchangesMore waits until a guest has exchanged more data on the connection that it keeps.
func (p *place) exchangesMore(v *peer, than int) (exchanged int) {
	p.Helper()
	p.eventually(func(g gomega.Gomega) {
		var err error
		exchanged, err = strconv.Atoi(p.call(v, "/held"))
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(exchanged).To(gomega.BeNumerically(">", than))
	})
	return exchanged
}
