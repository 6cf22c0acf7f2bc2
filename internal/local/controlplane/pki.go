package controlplane

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/local/folder"
)

// Certificates by their file names in pki/.
const (
	clusterCA         = "ca"                       // clients, kube-apiserver, and what the controller manager signs
	frontProxyCA      = "front-proxy-ca"           // apart from clusterCA, or any client could pose as the front proxy
	etcdCA            = "etcd-ca"                  // apart, or any client of the apiserver could read etcd
	apiserverCert     = "apiserver"                //
	kubeletClientCert = "apiserver-kubelet-client" // kube-apiserver as a client of kubelets
	frontProxyCert    = "front-proxy-client"       // kube-apiserver as a client of aggregated APIs
	etcdCert          = "etcd"
	etcdClientCert    = "apiserver-etcd-client"
	managerCert       = "controller-manager-server"
	schedulerCert     = "scheduler-server"
	adminCert         = "admin"
	managerClientCert = "controller-manager"
	schedulerClient   = "scheduler"
	serviceAccountKey = "service-account" // .key and .pub; signs service account tokens
)

const (
	serviceCIDR      = "10.96.0.0/16"
	apiserverService = "10.96.0.1" // the first address of serviceCIDR
	frontProxyName   = "front-proxy-client"
	adminGroup       = "system:masters"
)

// loopbackNames are what a server on this machine is called by its neighbours.
var loopbackNames = []string{"localhost", "127.0.0.1", "::1"}

// apiserverNames are the names under which kube-apiserver is reached: from this
// machine, from Pods, and from guests behind a user-mode network.
var apiserverNames = append(slices.Clone(loopbackNames),
	"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	apiserverService, "10.0.2.2", "fec0::2")

// leaves lists every certificate below an authority.
func leaves(serverNames []string) map[string]map[string]certRequest {
	server := func(name string) certRequest {
		return certRequest{commonName: name, hosts: loopbackNames, usages: serverUsage}
	}
	client := func(name string, groups ...string) certRequest {
		return certRequest{commonName: name, organizations: groups, usages: clientUsage}
	}
	return map[string]map[string]certRequest{
		clusterCA: {
			apiserverCert:     {commonName: APIServer, hosts: slices.Concat(apiserverNames, serverNames), usages: serverUsage},
			kubeletClientCert: client("kube-apiserver-kubelet-client", adminGroup),
			managerCert:       server(ControllerManager),
			schedulerCert:     server(Scheduler),
			adminCert:         client("admin", adminGroup),
			managerClientCert: client("system:kube-controller-manager"),
			schedulerClient:   client("system:kube-scheduler"),
		},
		frontProxyCA: {frontProxyCert: client(frontProxyName)},
		etcdCA: {
			etcdCert:       {commonName: Etcd, hosts: loopbackNames, usages: peerUsage},
			etcdClientCert: client(APIServer),
		},
	}
}

// pki holds all certificates of a control plane by their file names.
type pki map[string]ca.Pair

// ensurePKI loads the certificates from dir and makes those that are missing,
// close to their end, or made for other names.
func ensurePKI(dir layout, serverNames []string, now time.Time) (pki, error) {
	all := pki{}
	for authorityName, requests := range leaves(serverNames) {
		authority, err := ensureAuthority(dir.pki(authorityName), authorityName, now)
		if err != nil {
			return nil, err
		}
		all[authorityName] = authority
		for name, request := range requests {
			leaf, err := ensureLeaf(dir.pki(name), authority, request, now)
			if err != nil {
				return nil, err
			}
			all[name] = leaf
		}
	}
	return all, ensureServiceAccountKey(dir.pki(serviceAccountKey))
}

// ensureAuthority never replaces an authority that can be read: everything that
// was ever signed by it would be void.
func ensureAuthority(base, name string, now time.Time) (ca.Pair, error) {
	authority, err := load(base)
	if !errors.Is(err, ca.ErrUnusable) {
		return authority, err
	}
	if authority, err = newAuthority("millwright-"+name, now); err != nil {
		return ca.Pair{}, err
	}
	return authority, store(authority, base)
}

func ensureLeaf(base string, authority ca.Pair, request certRequest, now time.Time) (ca.Pair, error) {
	leaf, err := load(base)
	if err != nil && !errors.Is(err, ca.ErrUnusable) {
		return ca.Pair{}, err
	}
	if err == nil && usable(leaf.Cert, authority, request, now) {
		return leaf, nil
	}
	if leaf, err = issue(authority, request, now); err != nil {
		return ca.Pair{}, err
	}
	return leaf, store(leaf, base)
}

func ensureServiceAccountKey(base string) error {
	if _, err := os.Stat(base + ".pub"); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := ca.NewKey()
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding the service account key: %w", err)
	}
	if err := folder.WriteFile(base+".key", ca.EncodeKey(key)); err != nil {
		return err
	}
	// The public half comes last: it says that both are there.
	return folder.WriteFile(base+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}
