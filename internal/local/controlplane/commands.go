package controlplane

import (
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/local/supervisor"
)

// auditPolicy has every request recorded once, when it is done; a watch also when
// it begins. Metadata tells who did what to which object, but not its contents:
// those may be secret.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// Of Stop's ten seconds the apiserver gets the most: it lets requests finish. The
// two managers keep nothing in memory that matters, etcd's shutdown is short.
var graces = map[string]time.Duration{
	Scheduler:         time.Second,
	ControllerManager: time.Second,
	APIServer:         5 * time.Second,
	Etcd:              2 * time.Second,
}

// arguments returns the command line of a component.
func (cp *ControlPlane) arguments(name string) []string {
	switch name {
	case Etcd:
		return cp.etcdArguments()
	case APIServer:
		return slices.Concat(cp.apiserverArguments(), cp.auditArguments())
	case ControllerManager:
		return cp.controllerManagerArguments()
	default:
		return cp.schedulerArguments()
	}
}

// program returns how a component is run.
func (cp *ControlPlane) program(name string) supervisor.Program {
	p := supervisor.Program{
		Name:    name,
		Path:    filepath.Join(cp.config.Binaries, name),
		Args:    cp.arguments(name),
		Dir:     cp.dir.path(),
		LogFile: cp.dir.log(name),
		PIDFile: cp.dir.pidFile(name),
		Grace:   graces[name],
		Probe:   cp.probe(name),
		Log:     cp.log,
	}
	if !cp.config.orphanable {
		// An apiserver whose etcd is gone can take minutes to end in an orderly
		// way, and none of these has anything to lose. Only etcd has.
		p.DeathSignal = syscall.SIGKILL
		if name == Etcd {
			p.DeathSignal = syscall.SIGTERM
		}
	}
	return p
}

func (cp *ControlPlane) etcdArguments() []string {
	client, peer := loopbackURL(cp.ports.Etcd), loopbackURL(cp.ports.EtcdPeer)
	args := []string{
		"--name=etcd",
		"--data-dir=" + cp.dir.data(),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--client-cert-auth",
		"--trusted-ca-file=" + cp.dir.pki(etcdCA+".crt"),
		"--cert-file=" + cp.dir.pki(etcdCert+".crt"),
		"--key-file=" + cp.dir.pki(etcdCert+".key"),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + cp.dir.pki(etcdCA+".crt"),
		"--peer-cert-file=" + cp.dir.pki(etcdCert+".crt"),
		"--peer-key-file=" + cp.dir.pki(etcdCert+".key"),
		"--log-level=warn",
	}
	if cp.config.UnsafeNoFsync {
		args = append(args, "--unsafe-no-fsync")
	}
	return args
}

func (cp *ControlPlane) apiserverArguments() []string {
	file := cp.dir.pki
	return []string{
		"--bind-address=" + loopback,
		"--advertise-address=" + loopback,
		portFlag(cp.ports.APIServer),
		// A loopback address is not allowed in Endpoints, so the kubernetes
		// Service has none.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceCIDR,
		"--allow-privileged",

		"--etcd-servers=" + loopbackURL(cp.ports.Etcd),
		"--etcd-cafile=" + file(etcdCA+".crt"),
		"--etcd-certfile=" + file(etcdClientCert+".crt"),
		"--etcd-keyfile=" + file(etcdClientCert+".key"),

		"--tls-cert-file=" + file(apiserverCert+".crt"),
		"--tls-private-key-file=" + file(apiserverCert+".key"),
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
		// Node names are not in anybody's DNS here.
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
	}
}

func (cp *ControlPlane) auditArguments() []string {
	if !cp.config.AuditLog {
		return nil
	}
	return []string{
		"--audit-policy-file=" + cp.dir.auditPolicy(),
		"--audit-log-path=" + cp.dir.auditLog(),
		// A request is written down before it counts as done, so that whoever
		// reads the file after an answer finds it there.
		"--audit-log-mode=blocking",
		"--audit-log-maxsize=4096", // MB; a rotation would hide requests from readers
		"--audit-log-maxbackup=1",
	}
}

func (cp *ControlPlane) controllerManagerArguments() []string {
	file := cp.dir.pki
	return append(cp.clientArguments(managerClientCert),
		portFlag(cp.ports.ControllerManager),
		"--tls-cert-file="+file(managerCert+".crt"),
		"--tls-private-key-file="+file(managerCert+".key"),
		"--controllers=*,bootstrapsigner,tokencleaner",
		"--use-service-account-credentials",
		"--service-account-private-key-file="+file(serviceAccountKey+".key"),
		"--root-ca-file="+file(clusterCA+".crt"),
		"--cluster-signing-cert-file="+file(clusterCA+".crt"),
		"--cluster-signing-key-file="+file(clusterCA+".key"),
		// With the default of 20 requests a second it would take four seconds
		// after its start to get its controllers going.
		"--kube-api-qps=200",
		"--kube-api-burst=400",
		// It makes this folder; the default is in /usr.
		"--flex-volume-plugin-dir="+cp.dir.path("flexvolume"),
	)
}

func (cp *ControlPlane) schedulerArguments() []string {
	return append(cp.clientArguments(schedulerClient),
		portFlag(cp.ports.Scheduler),
		"--tls-cert-file="+cp.dir.pki(schedulerCert+".crt"),
		"--tls-private-key-file="+cp.dir.pki(schedulerCert+".key"),
	)
}

// clientArguments are those of the two managers alike. There is one of each, so
// they need not elect anybody.
func (cp *ControlPlane) clientArguments(credential string) []string {
	kubeconfig := cp.dir.credential(credential)
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + loopback,
		"--leader-elect=false",
	}
}
