package vms

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/program"
)

// badGuest is a guest that does not become a node.
type badGuest struct {
	name string
	// userData and boot change the configuration of this cluster's guests. If nil, they change nothing.
	userData, boot func(c *cluster, usual string) string
	// wantText is the expected console output of the guest.
	wantText string
}

// badGuests contains all bad guests.
func badGuests() []badGuest {
	server := regexp.MustCompile(`(?m)^server: .*$`)
	return []badGuest{
		{
			name:     "no-cloud-config",
			userData: func(*cluster, string) string { return "#cloud-config\npackages: [kubelet]\n" },
			wantText: "seed: the user data does not begin with the line #millwright-guest: it is a #cloud-config, for guests with cloud-init",
		}, {
			// Guests have no access to this port.
			name: "no-api-server",
			userData: func(_ *cluster, usual string) string {
				return server.ReplaceAllString(usual, "server: https://10.77.0.2:9")
			},
			wantText: `join: reading the ConfigMap cluster-info: Get "https://10.77.0.2:9/api/v1/namespaces/kube-public/configmaps/cluster-info": `,
		}, {
			name: "wrong-clock",
			boot: func(_ *cluster, usual string) string {
				return strings.Replace(usual, `"commandLine":"`, `"commandLine":"`+wrongClock+" ", 1)
			},
			wantText: "x509: certificate has expired or is not yet valid: current time 2001-",
		}, {
			name:     "full-disk",
			boot:     func(c *cluster, usual string) string { return usual + "," + c.rootDisk("full-disk", true) },
			wantText: "no space left on device",
		}, {
			name:     "no-kubelet",
			boot:     func(c *cluster, usual string) string { return usual + "," + c.rootDisk("no-kubelet", false) },
			wantText: "join: preparing the system: starting /sbin/modprobe: no such file or directory",
		},
	}
}

// trial creates a Machine of that guest. It stays Pending until its creation timeout, and "millwright explain
// machine" shows the reason as the guest printed it.
func (b badGuest) trial(c *cluster) func(*cluster) {
	userData, boot := c.userData(), c.kernelBoot()
	if b.userData != nil {
		userData = b.userData(c, userData)
	}
	if b.boot != nil {
		boot = b.boot(c, boot)
	}
	spec := `{"vmPool":"default","size":"xsmall","rootFsSize":1,"tags":{"kubernetes.io/cluster/test":"1","kubernetes.io/role/node":"1"},` + boot + `}`
	meta := metav1.ObjectMeta{Namespace: "default", Name: b.name}
	machine := &v1alpha1.Machine{ObjectMeta: meta, Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: b.name}}}
	c.create(
		&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"userData": []byte(userData)}},
		&v1alpha1.MachineClass{
			ObjectMeta: meta, Provider: "vm", ProviderSpec: runtime.RawExtension{Raw: []byte(spec)},
			SecretRef: &corev1.SecretReference{Namespace: meta.Namespace, Name: meta.Name},
		},
		machine,
	)
	return func(c *cluster) {
		c.eventually(joining, func(g gomega.Gomega) {
			g.Expect(c.explain(g, b.name)).To(gomega.And(
				gomega.ContainSubstring(fmt.Sprintf("is not Running: node %q has not joined", b.name)),
				gomega.MatchRegexp(`(?m)^  \| .*`+regexp.QuoteMeta(b.wantText)),
			))
			c.inPhase(g, machine, v1alpha1.MachinePending)
		})
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"creationTimeout":"1s"}}`))
		if err := c.client.Patch(c.t.Context(), machine, patch); err != nil {
			c.t.Fatal(err)
		}
		c.eventually(soon, func(g gomega.Gomega) { c.inPhase(g, machine, v1alpha1.MachineFailed) })
		c.eventually(soon, func(g gomega.Gomega) { // of a Machine that is not replaced yet
			g.Expect(c.explain(g, b.name)).To(gomega.ContainSubstring(b.wantText))
		})
		if err := c.client.Delete(c.t.Context(), machine); err != nil {
			c.t.Error(err)
		}
	}
}

func (c *cluster) inPhase(g gomega.Gomega, machine *v1alpha1.Machine, phase v1alpha1.MachinePhase) {
	g.Expect(c.client.Get(c.t.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
	g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(phase), machine.Status.LastOperation.Description)
}

// explain returns the output of "millwright explain machine".
func (c *cluster) explain(g gomega.Gomega, machine string) string {
	text, err := program.Command(c.t.Context(), "explain", "machine", machine, "--dir", c.dir).CombinedOutput()
	g.Expect(err).NotTo(gomega.HaveOccurred(), string(text))
	return string(text)
}

// wrongClock is in the kernel command line of a VM whose clock is 25 years slow.
const wrongClock = "test.clock=2001"

// slowClocks returns the environment in which QEMU sets the clocks of those VMs.
func slowClocks(t *testing.T) []string {
	t.Helper()
	const name = "qemu-system-x86_64"
	real, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *%s*) exec %s \"$@\" -rtc base=2001-01-01 ;; *) exec %[2]s \"$@\" ;; esac\n", wrongClock, real)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
}

// rootDisk serves a disk of 1 GiB with the file system of a full guest that contains neither a kubelet nor much
// else. It returns the part of a ProviderSpec that names the disk. A full file system has a program for the first
// command, so that the second one must write.
func (c *cluster) rootDisk(name string, full bool) string {
	c.t.Helper()
	dir := c.t.TempDir()
	tree, raw, image := filepath.Join(dir, "tree"), filepath.Join(dir, "raw"), filepath.Join(dir, name+".qcow2")
	for _, directory := range []string{"dev", "proc", "sys", "run", "tmp", "etc", "var/log", "sbin"} {
		if err := os.MkdirAll(filepath.Join(tree, directory), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	if full {
		if err := os.WriteFile(filepath.Join(tree, "sbin", "modprobe"), succeeds(), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	c.tool("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1", "-b", "4096", "-d", tree, raw, "1g")
	if full {
		free := regexp.MustCompile(`Free blocks: +(\d+)`).FindStringSubmatch(c.tool("debugfs", "-R", "stats", raw))
		if free == nil {
			c.t.Fatal("cannot determine the free space")
		}
		blocks, _ := strconv.Atoi(free[1]) // the expression matches a number
		// A block contains the numbers of others.
		c.tool("debugfs", "-w", "-R", "write /dev/null full", raw)
		c.tool("debugfs", "-w", "-R", fmt.Sprintf("fallocate full 0 %d", blocks-2), raw)
	}
	c.tool("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, image)
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	c.t.Cleanup(server.Close)
	return fmt.Sprintf(`"image":{"url":"%s/%s","format":"QCOW2"}`, server.URL, filepath.Base(image))
}

// tool runs a tool of the distribution, which "make qemu" installs, and returns its output.
func (c *cluster) tool(name string, args ...string) string {
	c.t.Helper()
	command := exec.CommandContext(c.t.Context(), "env", append([]string{name}, args...)...)
	command.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	output, err := command.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s %s (see \"make qemu\"): %v\n%s", name, strings.Join(args, " "), err, output)
	}
	return string(output)
}

// succeeds is a Linux program for x86_64 that exits with status 0.
func succeeds() []byte {
	const address, headers = 0x400000, 64 + 56
	code := []byte{0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05} // exit(0)
	var file bytes.Buffer
	file.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	for _, value := range []any{
		// Type, machine, version, entry point, offsets of the tables, flags, and sizes.
		uint16(2), uint16(62), uint32(1), uint64(address + headers), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(64), uint16(0), uint16(0),
		// The whole file is loaded, readable and executable.
		uint32(1), uint32(5), uint64(0), uint64(address), uint64(address), uint64(headers + len(code)), uint64(headers + len(code)), uint64(4096),
	} {
		_ = binary.Write(&file, binary.LittleEndian, value) // a buffer accepts everything
	}
	return append(file.Bytes(), code...)
}
