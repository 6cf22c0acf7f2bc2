package chart

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestChart_PluginDriverCreatesVM checks that a driver in a separate process, as the chart's Deployments specify,
// creates the VM of a Machine. The driver is a container that shares a socket with the manager's, or connects
// over the network.
func TestChart_PluginDriverCreatesVM(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, of := range plugins() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &installation{Env: env.New(t), t: t}
			of["mode"], of["driver"], of["image"] = "whole", "", values{"repository": "registry.example.com/millwright"}
			deployments := apply(t, i.Cluster, charted(t, i.Namespace, of))
			if name == "driver-sidecar" {
				i.startSidecar(deployments[0])
			} else {
				i.startApart(deployments[0])
			}
			i.createPool()
			i.hasVM()
		})
	}
}

// startSidecar starts both containers of a Pod, which share the directory of the socket.
func (i *installation) startSidecar(deployment *appsv1.Deployment) {
	i.t.Helper()
	pod := deployment.Spec.Template.Spec
	if len(pod.Containers) != 2 || pod.Containers[1].Name != "driver" {
		i.t.Fatalf("the containers are %+v", pod.Containers)
	}
	for _, container := range pod.Containers {
		if !mounted(container, "driver-socket", "/run/millwright") {
			i.t.Errorf("%s does not share the socket: %+v", container.Name, container.VolumeMounts)
		}
	}
	dir, err := os.MkdirTemp("", "s") // the path of a socket must be short
	must(i.t, err)
	i.t.Cleanup(func() { must(i.t, os.RemoveAll(dir)) })
	i.start("whole", pod.Containers[0], i.kubeconfig(pod.ServiceAccountName), "/run/millwright", dir)
	var args []string
	for _, arg := range pod.Containers[1].Args {
		args = append(args, strings.ReplaceAll(arg, "/run/millwright", dir))
	}
	i.startDriver(args...)
}

// startApart starts the manager with the files of the mounted Secret, and a separate driver with a certificate of
// the same CA.
func (i *installation) startApart(deployment *appsv1.Deployment) {
	i.t.Helper()
	pod := deployment.Spec.Template.Spec
	if !mounted(pod.Containers[0], "driver-tls", "/etc/millwright/drivers") {
		i.t.Errorf("the certificates are not mounted: %+v", pod.Containers[0].VolumeMounts)
	}
	port, err := i.ControlPlane.PortFor(i.Namespace+"-drivers", 0)
	must(i.t, err)
	address := "localhost:" + strconv.Itoa(port)
	authority, err := ca.New(x509.Certificate{Subject: pkix.Name{CommonName: "drivers"}, KeyUsage: x509.KeyUsageCertSign}, time.Now())
	must(i.t, err)
	manager, own := i.certificate(authority, "localhost"), i.certificate(authority, "sim")
	i.start("whole", pod.Containers[0], i.kubeconfig(pod.ServiceAccountName), "/etc/millwright/drivers", manager, "--driver-listen=:10260", "--driver-listen="+address)
	i.startDriver("--target="+address, "--tls-cert-file="+own+"/tls.crt", "--tls-private-key-file="+own+"/tls.key", "--tls-ca-file="+own+"/ca.crt")
}

// certificate writes the files of the Secret for a DNS name.
func (i *installation) certificate(authority ca.Pair, name string) (dir string) {
	i.t.Helper()
	key, err := ca.NewKey()
	must(i.t, err)
	certificate, err := authority.Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}, key.Public())
	must(i.t, err)
	pair := ca.Pair{Cert: certificate, Key: key}
	dir = i.t.TempDir()
	for file, text := range map[string][]byte{"tls.crt": pair.CertPEM(), "tls.key": pair.KeyPEM(), "ca.crt": authority.CertPEM()} {
		must(i.t, os.WriteFile(filepath.Join(dir, file), text, 0o600))
	}
	return dir
}

func (i *installation) startDriver(args ...string) {
	i.t.Helper()
	command := program.Command(context.Background(), args...)
	command.Env = append(os.Environ(), asDriver+"=1")
	process := program.StartOther(i.t, command)
	i.t.Cleanup(func() {
		process.Stop()
		if i.t.Failed() {
			i.t.Logf("the driver printed:\n%s", process.Output.Tail(50))
		}
	})
}

// hasVM waits until the pool's Machine has a VM.
func (i *installation) hasVM() {
	i.t.Helper()
	i.eventually(func(g gomega.Gomega) {
		machines := &v1alpha1.MachineList{}
		g.Expect(i.Client.List(i.t.Context(), machines, client.InNamespace(i.Namespace))).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.HaveLen(1))
		g.Expect(machines.Items[0].Spec.ProviderID).NotTo(gomega.BeEmpty(), "%+v", machines.Items[0].Status)
	})
}

func mounted(container corev1.Container, volume, path string) bool {
	for _, mount := range container.VolumeMounts {
		if mount.Name == volume && mount.MountPath == path {
			return true
		}
	}
	return false
}
