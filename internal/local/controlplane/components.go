package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/local/supervisor"
)

// Names of the components, for Config.Without, Kill, StopComponent and StartComponent.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

// component is a program of the control plane.
type component struct {
	name string
	// health is the path of its health check, on the given port.
	health string
	port   func(ports) int
	// authority signs its certificate, client is the client certificate for the health check.
	authority, client string
	// grace is how long it may take to exit. Of the ten seconds of Stop, the API server gets most, to finish
	// requests; the managers have no state.
	grace     time.Duration
	arguments func(*ControlPlane) []string
}

// components lists the components in the order in which they start.
func components() []component {
	return []component{
		{Etcd, "/health", func(p ports) int { return p.Etcd }, etcdCA, etcdClientCert, 2 * time.Second, (*ControlPlane).etcdArguments},
		{APIServer, "/readyz", func(p ports) int { return p.APIServer }, clusterCA, adminCert, 5 * time.Second, (*ControlPlane).apiserverArguments},
		{ControllerManager, "/healthz", func(p ports) int { return p.ControllerManager }, clusterCA, adminCert, time.Second, (*ControlPlane).controllerManagerArguments},
		{Scheduler, "/readyz", func(p ports) int { return p.Scheduler }, clusterCA, adminCert, time.Second, (*ControlPlane).schedulerArguments},
	}
}

// program returns the configuration of a component's process.
func (cp *ControlPlane) program(c component) supervisor.Program {
	p := supervisor.Program{
		Name:    c.name,
		Path:    filepath.Join(cp.config.Binaries, c.name),
		Args:    c.arguments(cp),
		Dir:     cp.dir.path(),
		LogFile: cp.dir.log(c.name),
		Record:  cp.dir.record(c.name),
		Grace:   c.grace,
		Probe:   cp.probe(c),
		Log:     cp.log,
	}
	if !cp.config.orphanable {
		// Only etcd can lose data. An API server without etcd can take minutes to shut down gracefully.
		p.DeathSignal = syscall.SIGKILL
		if c.name == Etcd {
			p.DeathSignal = syscall.SIGTERM
		}
	}
	return p
}

// probeTimeout limits a health check of a component that accepts connections but does not respond.
const probeTimeout = 2 * time.Second

// probe returns the health check of a component.
func (cp *ControlPlane) probe(c component) func(context.Context) error {
	url := loopbackURL(c.port(cp.ports)) + c.health
	sender := &http.Client{
		Timeout: probeTimeout,
		Transport: &http.Transport{
			// A kept connection could belong to a process that has exited.
			DisableKeepAlives: true,
			TLSClientConfig:   cp.clientTLS(c),
		},
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := sender.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s returned %s: %s", url, response.Status, body)
		}
		return err
	}
}

// clientTLS returns the TLS configuration of a component's clients.
func (cp *ControlPlane) clientTLS(c component) *tls.Config {
	roots, client := x509.NewCertPool(), cp.pki[c.client]
	roots.AddCert(cp.pki[c.authority].Cert)
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		RootCAs:      roots,
		Certificates: []tls.Certificate{{Certificate: [][]byte{client.Cert.Raw}, PrivateKey: client.Key}},
	}
}

// Etcd returns the URL of etcd and the TLS configuration of its clients.
func (cp *ControlPlane) Etcd() (url string, client *tls.Config) {
	all := components()
	etcd := all[slices.IndexFunc(all, func(c component) bool { return c.name == Etcd })]
	return loopbackURL(etcd.port(cp.ports)), cp.clientTLS(etcd)
}

func (cp *ControlPlane) etcdArguments() []string {
	client, peer := loopbackURL(cp.ports.Etcd), loopbackURL(cp.ports.EtcdPeer)
	authority, cert, key := cp.dir.pki(etcdCA+".crt"), cp.dir.pki(etcdCert+".crt"), cp.dir.pki(etcdCert+".key")
	args := []string{
		"--name=etcd",
		"--data-dir=" + cp.dir.data(),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--log-level=warn",
	}
	for _, of := range []string{"", "peer-"} {
		args = append(args, "--"+of+"client-cert-auth",
			"--"+of+"trusted-ca-file="+authority, "--"+of+"cert-file="+cert, "--"+of+"key-file="+key)
	}
	if cp.config.UnsafeNoFsync {
		args = append(args, "--unsafe-no-fsync")
	}
	return args
}

func (cp *ControlPlane) apiserverArguments() []string {
	file := cp.dir.pki
	return slices.Concat(cp.serverArguments(cp.ports.APIServer, apiserverCert), cp.cacheArguments(), cp.egressArguments(), cp.advertiseArguments(), []string{
		"--service-cluster-ip-range=" + cp.serviceNetworks(),
		"--allow-privileged",

		"--etcd-servers=" + loopbackURL(cp.ports.Etcd),
		"--etcd-cafile=" + file(etcdCA+".crt"),
		"--etcd-certfile=" + file(etcdClientCert+".crt"),
		"--etcd-keyfile=" + file(etcdClientCert+".key"),

		"--client-ca-file=" + file(clusterCA+".crt"),
		"--enable-bootstrap-token-auth",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",

		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + file(serviceAccountKey+".pub"),
		"--service-account-signing-key-file=" + file(serviceAccountKey+".key"),

		"--requestheader-client-ca-file=" + file(frontProxyCA+".crt"),
		"--requestheader-allowed-names=" + frontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + file(frontProxyCert+".crt"),
		"--proxy-client-key-file=" + file(frontProxyCert+".key"),

		"--kubelet-client-certificate=" + file(kubeletClientCert+".crt"),
		"--kubelet-client-key=" + file(kubeletClientCert+".key"),
		// The names of Nodes cannot be resolved by DNS.
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
	})
}

// advertiseArguments set the address at which Pods reach kube-apiserver through the Service kubernetes.
func (cp *ControlPlane) advertiseArguments() []string {
	if address := cp.config.AdvertiseAddress; address.IsValid() {
		return []string{"--advertise-address=" + address.String()}
	}
	// Endpoints cannot have loopback addresses, so the Service has none.
	return []string{"--advertise-address=" + loopback, "--endpoint-reconciler-type=none"}
}

func (cp *ControlPlane) cacheArguments() []string {
	if cp.config.NoWatchCache {
		return []string{"--watch-cache=false"}
	}
	return nil
}

func (cp *ControlPlane) egressArguments() []string {
	if cp.config.EgressSocket == "" {
		return nil
	}
	return []string{"--egress-selector-config-file=" + cp.dir.egress()}
}

// longestSocket is the maximum length of the path of a Unix socket, in bytes.
const longestSocket = 107

// egressConfig is a format string; its argument is the path of the socket.
const egressConfig = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %q
`

// writeEgress writes the configuration of how kube-apiserver reaches nodes.
func (cp *ControlPlane) writeEgress() error {
	socket := cp.config.EgressSocket
	if socket == "" {
		return nil
	}
	if len(socket) > longestSocket {
		return fmt.Errorf("the socket path %s is longer than %d bytes; choose another directory", socket, longestSocket)
	}
	config := fmt.Sprintf(egressConfig, socket)
	if err := os.WriteFile(cp.dir.egress(), []byte(config), 0o600); err != nil {
		return fmt.Errorf("writing the egress configuration: %w", err)
	}
	return nil
}

func (cp *ControlPlane) controllerManagerArguments() []string {
	file := cp.dir.pki
	return slices.Concat(cp.serverArguments(cp.ports.ControllerManager, managerCert), cp.clientArguments(managerClientCert), []string{
		"--controllers=*,bootstrapsigner,tokencleaner",
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + file(serviceAccountKey+".key"),
		"--root-ca-file=" + file(clusterCA+".crt"),
		"--cluster-signing-cert-file=" + file(clusterCA+".crt"),
		"--cluster-signing-key-file=" + file(clusterCA+".key"),
		// With the default of 20 requests per second, its controllers start four seconds later.
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		// It creates this directory; the default is in /usr.
		"--flex-volume-plugin-dir=" + cp.dir.path("flexvolume"),
	}, cp.podNetworkArguments())
}

func (cp *ControlPlane) podNetworkArguments() []string {
	networks := cp.config.PodNetwork.String()
	switch {
	case !cp.config.PodNetwork.IsValid():
		return nil
	case cp.config.PodNetwork6.IsValid():
		networks += "," + cp.config.PodNetwork6.String()
	}
	return []string{"--allocate-node-cidrs", "--cluster-cidr=" + networks}
}

// serviceNetworks returns the networks of the addresses of Services.
func (cp *ControlPlane) serviceNetworks() string {
	if cp.config.PodNetwork6.IsValid() {
		return serviceCIDR + "," + serviceCIDR6
	}
	return serviceCIDR
}

func (cp *ControlPlane) schedulerArguments() []string {
	return append(cp.serverArguments(cp.ports.Scheduler, schedulerCert), cp.clientArguments(schedulerClient)...)
}

func (cp *ControlPlane) serverArguments(port int, cert string) []string {
	return []string{
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + cp.dir.pki(cert+".crt"),
		"--tls-private-key-file=" + cp.dir.pki(cert+".key"),
	}
}

// clientArguments are for clients of the API server. There is one process of each, so they need no leader
// election.
func (cp *ControlPlane) clientArguments(credential string) []string {
	kubeconfig := cp.dir.credential(credential)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false",
	}
}
