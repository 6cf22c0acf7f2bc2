package controlplane

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/local/directory"
)

// Certificates by their file names in pki/.
const (
	clusterCA         = "ca"             // clients, kube-apiserver, and certificates signed by the controller manager
	frontProxyCA      = "front-proxy-ca" // not clusterCA, or any client could pose as the front proxy
	etcdCA            = "etcd-ca"        // not clusterCA, or any client of the API server could read etcd
	apiserverCert     = "apiserver"
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

// ServiceNetwork is the network of the addresses of Services.
var ServiceNetwork = netip.MustParsePrefix(serviceCIDR)

const (
	serviceCIDR      = "10.96.0.0/16"
	serviceCIDR6     = "fd6d:696c:6c77:200::/112"
	apiserverService = "10.96.0.1" // the first address of serviceCIDR
	frontProxyName   = "front-proxy-client"
	adminGroup       = "system:masters"
	leafLifetime     = 365 * 24 * time.Hour
)

var loopbackNames = []string{"localhost", "127.0.0.1", "::1"}

// apiserverNames are the names of kube-apiserver for this machine, for Pods, and for guests
// behind a user-mode network.
var apiserverNames = append(slices.Clone(loopbackNames),
	"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	apiserverService, "10.0.2.2", "fec0::2")

// leaf describes a certificate below an authority.
type leaf struct {
	commonName    string
	organizations []string
	hosts         []string // DNS names and addresses; none for a client
	usages        []x509.ExtKeyUsage
	lifetime      time.Duration // 0 means leafLifetime
}

var (
	serverUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	clientUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	peerUsage   = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
)

// leaves lists the certificates below each authority.
func leaves(serverNames []string) map[string]map[string]leaf {
	server := func(name string) leaf { return leaf{commonName: name, hosts: loopbackNames, usages: serverUsage} }
	client := func(name string, groups ...string) leaf {
		return leaf{commonName: name, organizations: groups, usages: clientUsage}
	}
	return map[string]map[string]leaf{
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

// ensurePKI loads the authorities and the service account key from the directory, or creates them, and issues
// all other certificates again: each start has certificates that are valid for a year.
func ensurePKI(dir layout, serverNames []string, now time.Time) (pki, error) {
	all := pki{}
	for name, leaves := range leaves(serverNames) {
		authority, err := ensureAuthority(dir.pki(name), "millwright-"+name, now)
		if err != nil {
			return nil, err
		}
		all[name] = authority
		for name, leaf := range leaves {
			if all[name], err = issue(authority, leaf, now); err != nil {
				return nil, err
			}
			if err := store(all[name], dir.pki(name)); err != nil {
				return nil, err
			}
		}
	}
	return all, ensureServiceAccountKey(dir.pki(serviceAccountKey))
}

// ensureAuthority creates an authority only if there is none. An unusable one is an error: all certificates
// that it signed would become invalid. If only the certificate is missing, it is created again for the same
// key, which keeps signed certificates valid.
func ensureAuthority(base, commonName string, now time.Time) (ca.Pair, error) {
	template := x509.Certificate{
		Subject:  pkix.Name{CommonName: commonName},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	certificate, key, err := readPair(base+".crt", base+".key")
	if err != nil {
		return ca.Pair{}, err
	}
	var authority ca.Pair
	switch {
	case certificate != nil:
		authority, err = ca.Parse(certificate, key)
		return authority, refused(base+".crt and .key", err)
	case key != nil:
		kept, keyErr := ca.ParseKey(key)
		if keyErr != nil {
			return ca.Pair{}, refused(base+".key", keyErr)
		}
		authority, err = ca.ForKey(kept, template, now)
	default:
		authority, err = ca.New(template, now)
	}
	if err != nil {
		return ca.Pair{}, err
	}
	return authority, store(authority, base)
}

// refused explains how to handle a file that cannot be used and is not replaced.
func refused(files string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w; it is not replaced, since everything signed with it would become invalid; "+
		"restore it from a backup, or start a new cluster in another directory", files, err)
}

// issue generates a key and lets the authority sign its certificate.
func issue(authority ca.Pair, leaf leaf, now time.Time) (ca.Pair, error) {
	template := x509.Certificate{
		Subject:     pkix.Name{CommonName: leaf.commonName, Organization: leaf.organizations},
		NotBefore:   now.Add(-ca.Backdate),
		NotAfter:    now.Add(cmp.Or(leaf.lifetime, leafLifetime)),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: leaf.usages,
	}
	for _, host := range leaf.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key, err := ca.NewKey()
	if err != nil {
		return ca.Pair{}, err
	}
	cert, err := authority.Sign(template, key.Public())
	if err != nil {
		return ca.Pair{}, fmt.Errorf("issuing the certificate of %s: %w", leaf.commonName, err)
	}
	return ca.Pair{Cert: cert, Key: key}, nil
}

// store writes base.crt and base.key. The key is written first: an authority's certificate can be created again
// for its key.
func store(p ca.Pair, base string) error {
	if err := directory.WriteFile(base+".key", p.KeyPEM()); err != nil {
		return err
	}
	return directory.WriteFile(base+".crt", p.CertPEM())
}

// readPair returns the content of two files, or nil for a file that does not exist.
func readPair(public, private string) (publicPEM, keyPEM []byte, err error) {
	var content [2][]byte
	for i, path := range []string{public, private} {
		content[i], err = os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
	}
	return content[0], content[1], nil
}

// ensureServiceAccountKey never replaces the key: all tokens would become invalid.
func ensureServiceAccountKey(base string) error {
	public, private, err := readPair(base+".pub", base+".key")
	if err != nil {
		return err
	}
	var key *ecdsa.PrivateKey
	if public == nil && private == nil {
		if key, err = ca.NewKey(); err != nil {
			return err
		}
		err = directory.WriteFile(base+".key", ca.EncodeKey(key))
	} else {
		key, err = ca.ParseKey(private)
		err = refused(base+".key", err)
	}
	if err != nil || public != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding the service account key: %w", err)
	}
	return directory.WriteFile(base+".pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}
