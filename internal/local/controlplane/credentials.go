package controlplane

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/local/directory"
)

// RESTConfig returns a new configuration for the administrator (group system:masters), without a client-side
// rate limit (QPS is -1) and without a user agent.
func (cp *ControlPlane) RESTConfig() *rest.Config { return cp.restConfig(cp.pki[adminCert]) }

// UserConfig returns a configuration for a user with a new client certificate, valid for a year. RBAC
// determines the user's permissions. There is no client-side rate limit.
func (cp *ControlPlane) UserConfig(user string, groups ...string) (*rest.Config, error) {
	issued, err := cp.issueClient(user, groups)
	if err != nil {
		return nil, err
	}
	return cp.restConfig(issued), nil
}

// WriteKubeconfig writes a kubeconfig with mode 0600 for a user as in UserConfig.
func (cp *ControlPlane) WriteKubeconfig(path, user string, groups ...string) error {
	issued, err := cp.issueClient(user, groups)
	if err != nil {
		return err
	}
	return cp.writeKubeconfig(path, issued)
}

// Lifetime of a certificate that is renewed while the program runs, and the interval at which its age is
// checked. Timers do not count time while the machine sleeps.
const (
	renewedLifetime = 30 * 24 * time.Hour
	renewalInterval = time.Hour
)

// KeepKubeconfig is like WriteKubeconfig, but writes the certificate and key into a file next to the
// kubeconfig, PATH.pem. The returned function renews that file after two thirds of the certificate's lifetime,
// until the context is done; clients of client-go reload it. The function returns nil.
func (cp *ControlPlane) KeepKubeconfig(path, user string, groups ...string) (keep func(context.Context) error, err error) {
	kept := &keptCertificate{
		path: path + ".pem", authority: cp.pki[clusterCA],
		leaf: leaf{commonName: user, organizations: groups, usages: clientUsage, lifetime: renewedLifetime},
		log:  cp.config.Logger,
	}
	if err := kept.renew(); err != nil {
		return nil, err
	}
	auth := &clientcmdapi.AuthInfo{ClientCertificate: kept.path, ClientKey: kept.path}
	return kept.keep, cp.writeConfig(path, user, auth)
}

// keptCertificate is a file with a client certificate and its key.
type keptCertificate struct {
	path      string
	authority ca.Pair
	leaf      leaf
	log       logr.Logger
	// renewal is when the certificate must be renewed. It has no monotonic clock reading.
	renewal time.Time
}

// keep renews the file until the context is done.
func (k *keptCertificate) keep(ctx context.Context) error {
	ticker := time.NewTicker(renewalInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if time.Now().Before(k.renewal) {
			continue
		}
		if err := k.renew(); err != nil {
			k.log.Error(err, "renewing a certificate failed; retrying", "file", k.path)
		}
	}
}

// renew replaces the file atomically, so that certificate and key always match.
func (k *keptCertificate) renew() error {
	issued, err := issue(k.authority, k.leaf, time.Now())
	if err == nil {
		err = directory.WriteFile(k.path, slices.Concat(issued.CertPEM(), issued.KeyPEM()))
	}
	if err != nil {
		return fmt.Errorf("issuing a client certificate for %s: %w", k.leaf.commonName, err)
	}
	k.renewal = issued.Cert.NotAfter.Add(-k.leaf.lifetime / 3)
	return nil
}

func (cp *ControlPlane) issueClient(user string, groups []string) (ca.Pair, error) {
	issued, err := issue(cp.pki[clusterCA], leaf{commonName: user, organizations: groups, usages: clientUsage}, time.Now())
	if err != nil {
		return ca.Pair{}, fmt.Errorf("issuing a client certificate for %s: %w", user, err)
	}
	return issued, nil
}

func (cp *ControlPlane) restConfig(client ca.Pair) *rest.Config {
	return &rest.Config{
		Host:            cp.URL(),
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.CAData(), CertData: client.CertPEM(), KeyData: client.KeyPEM()},
		QPS:             -1,
	}
}

func (cp *ControlPlane) writeKubeconfig(path string, client ca.Pair) error {
	auth := &clientcmdapi.AuthInfo{ClientCertificateData: client.CertPEM(), ClientKeyData: client.KeyPEM()}
	return cp.writeConfig(path, client.Cert.Subject.CommonName, auth)
}

func (cp *ControlPlane) writeConfig(path, user string, auth *clientcmdapi.AuthInfo) error {
	name := cp.config.Name
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: cp.URL(), CertificateAuthorityData: cp.CAData()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: auth},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: user}},
		CurrentContext: name,
	})
	if err == nil {
		err = directory.WriteFile(path, content)
	}
	if err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}

// writeKubeconfigs writes the kubeconfigs of the administrator and of the components.
func (cp *ControlPlane) writeKubeconfigs() error {
	for path, name := range map[string]string{
		cp.dir.kubeconfig():                  adminCert,
		cp.dir.credential(managerClientCert): managerClientCert,
		cp.dir.credential(schedulerClient):   schedulerClient,
	} {
		if err := cp.writeKubeconfig(path, cp.pki[name]); err != nil {
			return err
		}
	}
	return nil
}
