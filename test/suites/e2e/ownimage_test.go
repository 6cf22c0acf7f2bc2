package e2e

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	ownImage = "worker.qcow2"
	// debugfs is in a directory that not every PATH contains.
	debugfs = "/usr/sbin/debugfs"
	// rootOffset is where the root file system begins on the disk that examples/own-image/build.sh writes.
	rootOffset = 18 << 20
	// ownDiskBytes is the size of the disk in examples/own-image/pool.yaml. The image is smaller than half of it.
	ownDiskBytes = 10 << 30
)

// TestOwnImage_BecomesNode checks the image and the user data of examples/own-image: the image boots by each firmware,
// each renderer of cloud-init in Debian configures its network, and the machine becomes a node, uses its whole disk, and
// shuts down when it is deleted.
func TestOwnImage_BecomesNode(t *testing.T) {
	tier.All(t)
	image := filepath.Join(builtFile(t, "own-image", ownImage), ownImage)
	files := t.TempDir()
	c := startServing(t, files, "--images", files)
	for _, test := range []struct {
		renderer, file string
		firmware       vmv1alpha1.Firmware
	}{
		{"netplan", "/etc/netplan/50-cloud-init.yaml", vmv1alpha1.FirmwareBIOS},
		{"networkd", "/etc/systemd/network/10-cloud-init-*.network", vmv1alpha1.FirmwareUEFI},
		{"eni", "/etc/network/interfaces.d/50-cloud-init", vmv1alpha1.FirmwareBIOS},
	} {
		t.Run(test.renderer, func(t *testing.T) {
			o := &ownMachine{cluster: c.in(t), name: "own-" + test.renderer}
			o.writeImage(image, filepath.Join(files, o.name+".raw"), test.renderer)
			o.create(test.firmware, test.file)
			o.awaitNode(test.file)
			o.deleteGracefully()
		})
	}
}

// ownMachine is a pool with one machine, and the names of its class, Secret and image.
type ownMachine struct {
	*cluster
	name string
}

// writeImage writes a raw copy of the image in which cloud-init uses the renderer.
func (o *ownMachine) writeImage(from, to, renderer string) {
	o.t.Helper()
	o.command("qemu-img", "convert", "-f", "qcow2", "-O", "raw", from, to)
	const target = "/etc/cloud/cloud.cfg.d/99_renderer.cfg"
	config := filepath.Join(o.t.TempDir(), "renderer.cfg")
	text := fmt.Sprintf("system_info: {network: {renderers: [%s]}}\n", renderer)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		o.t.Fatal(err)
	}
	disk := fmt.Sprintf("%s?offset=%d", to, rootOffset)
	o.command(debugfs, "-w", "-R", "write "+config+" "+target, disk)
	// debugfs succeeds even if a command fails.
	if got := o.command(debugfs, "-R", "cat "+target, disk); !strings.Contains(got, text) {
		o.t.Fatalf("the image has the file %s with %q, want %q", target, got, text)
	}
}

// command runs a program, which must succeed, and returns its output.
func (o *ownMachine) command(name string, args ...string) string {
	o.t.Helper()
	command := exec.CommandContext(o.t.Context(), name, args...)
	out, err := command.CombinedOutput()
	if err != nil {
		o.t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return string(out)
}

// create creates the pool of examples/own-image. Its guest prints the file that the renderer writes.
func (o *ownMachine) create(firmware vmv1alpha1.Firmware, file string) {
	o.t.Helper()
	userData := o.example("user-data",
		"CA_DATA", base64.StdEncoding.EncodeToString(o.config.CAData),
		":16443", ":"+o.port(),
		// A node is not Ready without a network plugin.
		"runcmd:\n", `- path: /etc/cni/net.d/10-test.conflist
  content: '{"cniVersion": "0.4.0", "name": "test", "plugins": [{"type": "loopback"}]}'
runcmd:
- "echo configured by $(ls `+file+`) > /dev/ttyS0"
`)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: o.name}, StringData: map[string]string{"userData": userData},
	}
	if err := o.client.Create(o.t.Context(), secret); err != nil {
		o.t.Fatal(err)
	}
	pool := o.example("pool.yaml",
		"name: own", "name: "+o.name,
		"http://127.0.0.1:16480/"+ownImage, o.images+"/"+o.name+".raw",
		"format: QCOW2", "format: Raw",
		"  vmPool: default", fmt.Sprintf("  firmware: %s\n  terminationGracePeriodSeconds: 1200\n  vmPool: default", firmware),
		"    spec:\n      class:", "    spec:\n      creationTimeout: 2h\n      class:",
	)
	manifests := fstest.MapFS{"pool.yaml": {Data: []byte(pool)}}
	if err := controlplane.Apply(o.t.Context(), o.config, manifests, "*.yaml", namespace); err != nil {
		o.t.Fatal(err)
	}
}

// example returns a file of examples/own-image with replacements, each of which must occur.
func (o *ownMachine) example(file string, replacements ...string) string {
	o.t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../../examples/own-image", file))
	if err != nil {
		o.t.Fatal(err)
	}
	text := string(raw)
	for pair := range slices.Chunk(replacements, 2) {
		if !strings.Contains(text, pair[0]) {
			o.t.Fatalf("%s does not contain %q", file, pair[0])
		}
		text = strings.ReplaceAll(text, pair[0], pair[1])
	}
	return text
}

// awaitNode waits until the machine is Running, and checks its node and its console.
func (o *ownMachine) awaitNode(file string) {
	o.t.Helper()
	node := &corev1.Node{}
	o.eventually(late, func(g gomega.Gomega) {
		machines := slices.Collect(maps.Values(o.machines(g)))
		g.Expect(machines).To(gomega.HaveLen(1))
		g.Expect(machines[0].Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning))
		node = o.node(g, machines[0].Name)
		g.Expect(ready(node)).To(gomega.BeTrue())
	})
	vm := o.vmOf(node.Name)
	if want := "millwright:///" + vm.Namespace + "/" + vm.Spec.UUID; node.Spec.ProviderID != want {
		o.t.Errorf("provider ID = %q, want %q", node.Spec.ProviderID, want)
	}
	if !slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
		return a.Type == corev1.NodeInternalIP && slices.Contains(vm.Status.Addresses, a.Address)
	}) {
		o.t.Errorf("addresses of the node = %v, want one of %v", node.Status.Addresses, vm.Status.Addresses)
	}
	if size := node.Status.Capacity.StorageEphemeral().Value(); size < ownDiskBytes*3/4 {
		o.t.Errorf("the root file system has %d bytes; it does not use the whole disk of %d bytes", size, ownDiskBytes)
	}
	prefix, suffix, _ := strings.Cut(file, "*")
	configured := regexp.MustCompile("configured by " + regexp.QuoteMeta(prefix) + `[^*\s]*` + regexp.QuoteMeta(suffix))
	if console := o.run("vm", "logs", vm.Name); !configured.MatchString(console) {
		o.t.Errorf("the guest does not have the file %s of the renderer:\n%s", file, console)
	}
}

// deleteGracefully deletes the pool, and checks that its guest shuts down.
func (o *ownMachine) deleteGracefully() {
	o.t.Helper()
	pool := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: o.name}}
	if err := o.client.Delete(o.t.Context(), pool); err != nil {
		o.t.Fatal(err)
	}
	o.eventually(late, func(g gomega.Gomega) { g.Expect(o.machines(g)).To(gomega.BeEmpty()) })
	events := &corev1.EventList{}
	if err := o.client.List(o.t.Context(), events, client.InNamespace(namespace)); err != nil {
		o.t.Fatal(err)
	}
	var texts []string
	for _, event := range events.Items {
		if event.Reason == "ShutDown" && strings.HasPrefix(event.InvolvedObject.Name, o.name) {
			texts = append(texts, event.Message)
		}
	}
	if len(texts) != 1 || !strings.HasSuffix(texts[0], "the guest shut down as requested") {
		o.t.Errorf("the virtual machine terminated with %q, want a shutdown of the guest", texts)
	}
}
