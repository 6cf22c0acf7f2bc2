package e2e

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestKubeadm_ControlPlaneAndWorker checks that user data of Cluster API's bootstrap provider turn one guest into a control plane and
// another one into its worker. Pods run on both, and reach each other.
func TestKubeadm_ControlPlaneAndWorker(t *testing.T) {
	tier.All(t)
	machines := newMachines(t, "guest-kubeadm")
	cluster := newKubeadmCluster(t, machines)

	began := time.Now()
	first := machines.boot("control-plane", 21, 2048, cluster.initData())
	first.awaitConsole("bootstrap: succeeded")
	t.Logf("kubeadm init succeeded %s after the start of QEMU", time.Since(began).Round(time.Second))
	cluster.eventually(late, func(g gomega.Gomega) { cluster.wantNode(g, "control-plane", first.uuid) })
	t.Logf("its node was Ready after %s", time.Since(began).Round(time.Second))

	if err := cluster.client.Create(t.Context(), bootstrapToken()); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	second := machines.boot("worker", 22, 1024, cluster.joinData())
	second.awaitConsole("bootstrap: succeeded")
	t.Logf("kubeadm join succeeded %s after the start of QEMU", time.Since(began).Round(time.Second))
	cluster.eventually(late, func(g gomega.Gomega) { cluster.wantNode(g, "worker", second.uuid) })
	t.Logf("its node was Ready after %s", time.Since(began).Round(time.Second))

	// One Pod serves, and the other one sends requests through the Pod network.
	cluster.createPod("web", "worker", "web")
	address := ""
	cluster.eventually(late, func(g gomega.Gomega) {
		pod := cluster.pod(g, "web")
		g.Expect(pod.Status.Phase).To(gomega.Equal(corev1.PodRunning))
		address = pod.Status.PodIP
	})
	cluster.createPod("ask", "control-plane", "get", "http://"+address+":8080/")
	cluster.eventually(late, func(g gomega.Gomega) {
		g.Expect(cluster.pod(g, "ask").Status.Phase).To(gomega.Equal(corev1.PodSucceeded))
	})
}

// kubeadmCluster is a cluster whose CAs are created here, as by Cluster API.
type kubeadmCluster struct {
	*testing.T
	client      client.Client
	authorities map[string]ca.Pair
	endpoint    netip.AddrPort
}

// token is the bootstrap token of workers.
const tokenID, tokenSecret = "abcdef", "0123456789abcdef"

func newKubeadmCluster(t *testing.T, machines *machines) *kubeadmCluster {
	t.Helper()
	c := &kubeadmCluster{T: t, authorities: map[string]ca.Pair{}, endpoint: netip.AddrPortFrom(machines.address(21), 6443)}
	for _, name := range []string{"ca", "etcd/ca", "front-proxy-ca", "sa"} {
		pair, err := ca.New(x509.Certificate{
			Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.authorities[name] = pair
	}
	key, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	admin, err := c.authorities["ca"].Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{
		Host: "https://" + c.endpoint.String(), QPS: -1, Timeout: time.Minute,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authorities["ca"].CertPEM(), CertData: encoded("CERTIFICATE", admin.Raw), KeyData: ca.EncodeKey(key)},
		Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
			return machines.dialer.Dial(ctx, netip.MustParseAddrPort(address))
		},
	}
	// The client discovers the kinds at its first request, because there is no API server yet.
	if c.client, err = client.New(config, client.Options{Scheme: manager.Scheme()}); err != nil {
		t.Fatal(err)
	}
	return c
}

func encoded(kind string, content []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
}

// begin is the beginning of all user data of Cluster API.
const begin = "## template: jinja\n#cloud-config\n\nwrite_files:\n"

// writeFile is an entry of write_files as Cluster API writes it.
func writeFile(path, permissions, content string) string {
	return fmt.Sprintf("-   path: %s\n    owner: root:root\n    permissions: '%s'\n    content: |\n      %s\n",
		path, permissions, strings.ReplaceAll(content, "\n", "\n      "))
}

// end is the end of all user data of Cluster API.
func end(command string) string {
	return `-   path: /run/cluster-api/placeholder
    owner: root:root
    permissions: '0640'
    content: "This placeholder file is used to create the /run/cluster-api sub directory in a way that is compatible with both Linux and Windows (mkdir -p /run/cluster-api does not work with Windows)"
runcmd:
  - '` + command + ` && echo success > /run/cluster-api/bootstrap-success.complete'
`
}

// registration configures how nodes register. Everything takes long on emulated CPUs.
const registration = `nodeRegistration:
  kubeletExtraArgs:
  - name: provider-id
    value: millwright:///default/{{ ds.meta_data.instance_id }}
  name: '{{ ds.meta_data.local_hostname }}'
timeouts:
  controlPlaneComponentHealthCheck: 30m
  discovery: 30m
  etcdAPICall: 10m
  kubeletHealthCheck: 30m
  kubernetesAPICall: 30m
  tlsBootstrap: 30m
`

func (c *kubeadmCluster) initData() string {
	text := begin
	for _, name := range []string{"ca", "etcd/ca", "front-proxy-ca"} {
		text += writeFile("/etc/kubernetes/pki/"+name+".crt", "0640", string(c.authorities[name].CertPEM()))
		text += writeFile("/etc/kubernetes/pki/"+name+".key", "0600", string(c.authorities[name].KeyPEM()))
	}
	public, err := x509.MarshalPKIXPublicKey(c.authorities["sa"].Key.Public())
	if err != nil {
		c.Fatal(err)
	}
	text += writeFile("/etc/kubernetes/pki/sa.pub", "0640", string(encoded("PUBLIC KEY", public)))
	text += writeFile("/etc/kubernetes/pki/sa.key", "0600", string(c.authorities["sa"].KeyPEM()))
	return text + writeFile("/run/kubeadm/kubeadm.yaml", "0640", `---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: one
controlPlaneEndpoint: `+c.endpoint.String()+`
kubernetesVersion: v1.37.2
etcd:
  local:
    extraArgs:
    - {name: election-timeout, value: "10000"}
    - {name: heartbeat-interval, value: "1000"}
networking:
  dnsDomain: cluster.local
  podSubnet: 10.78.0.0/16
  serviceSubnet: 10.96.0.0/12
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {}
`+registration) + end("kubeadm init --config /run/kubeadm/kubeadm.yaml ")
}

func (c *kubeadmCluster) joinData() string {
	digest := sha256.Sum256(c.authorities["ca"].Cert.RawSubjectPublicKeyInfo)
	return begin + writeFile("/run/kubeadm/kubeadm-join-config.yaml", "0640", `---
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken:
    apiServerEndpoint: `+c.endpoint.String()+`
    caCertHashes:
    - sha256:`+hex.EncodeToString(digest[:])+`
    token: `+tokenID+"."+tokenSecret+`
`+registration) + end("kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml ")
}

// bootstrapToken creates a token as Cluster API does for each worker.
func bootstrapToken() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + tokenID},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": tokenID, "token-secret": tokenSecret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		},
	}
}

func (c *kubeadmCluster) eventually(within time.Duration, check func(g gomega.Gomega)) {
	c.Helper()
	gomega.NewWithT(c).Eventually(func(g gomega.Gomega) { check(g) }).WithTimeout(within).WithPolling(time.Second).Should(gomega.Succeed())
}

// wantNode checks that the node exists, is Ready, and belongs to the machine.
func (c *kubeadmCluster) wantNode(g gomega.Gomega, name, uuid string) {
	node := &corev1.Node{}
	g.Expect(c.client.Get(c.Context(), client.ObjectKey{Name: name}, node)).To(gomega.Succeed())
	g.Expect(ready(node)).To(gomega.BeTrue(), readyCondition(node).Message)
	g.Expect(node.Spec.ProviderID).To(gomega.Equal("millwright:///default/" + uuid))
}

// createPod runs the image that is included in the guest on a node.
func (c *kubeadmCluster) createPod(name, node string, args ...string) {
	c.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyOnFailure, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "container", Image: image, ImagePullPolicy: corev1.PullNever, Args: args}},
		},
	}
	// A controller that may still be starting creates the service account of Pods.
	c.eventually(late, func(g gomega.Gomega) { g.Expect(c.client.Create(c.Context(), pod)).To(gomega.Succeed()) })
}

func (c *kubeadmCluster) pod(g gomega.Gomega, name string) *corev1.Pod {
	pod := &corev1.Pod{}
	g.Expect(c.client.Get(c.Context(), client.ObjectKey{Namespace: namespace, Name: name}, pod)).To(gomega.Succeed())
	return pod
}
