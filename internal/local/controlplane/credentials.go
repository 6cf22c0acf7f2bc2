package controlplane

import (
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/local/folder"
)

// RESTConfig returns a new configuration for the administrator (group system:masters),
// without client-side rate limit (QPS is -1) and user agent.
func (cp *ControlPlane) RESTConfig() *rest.Config { return cp.restConfig(cp.pki[adminCert]) }

// UserConfig returns a configuration for a user with a new client certificate, valid for a
// year. RBAC decides what the user may do. There is no client-side rate limit.
func (cp *ControlPlane) UserConfig(user string, groups ...string) (*rest.Config, error) {
	issued, err := cp.issueClient(user, groups)
	if err != nil {
		return nil, err
	}
	return cp.restConfig(issued), nil
}

// WriteKubeconfig writes a kubeconfig, mode 0600, for a user as in UserConfig.
func (cp *ControlPlane) WriteKubeconfig(path, user string, groups ...string) error {
	issued, err := cp.issueClient(user, groups)
	if err != nil {
		return err
	}
	return cp.writeKubeconfig(path, issued)
}

func (cp *ControlPlane) issueClient(user string, groups []string) (ca.Pair, error) {
	issued, err := issue(cp.pki[clusterCA], leaf{commonName: user, organizations: groups, usages: clientUsage}, time.Now())
	if err != nil {
		return ca.Pair{}, fmt.Errorf("making a client certificate for %s: %w", user, err)
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
	name, user := cp.config.Name, client.Cert.Subject.CommonName
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: cp.URL(), CertificateAuthorityData: cp.CAData()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: client.CertPEM(), ClientKeyData: client.KeyPEM()}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: user}},
		CurrentContext: name,
	})
	if err == nil {
		err = folder.WriteFile(path, content)
	}
	if err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}

// writeKubeconfigs writes those of the administrator and of the components.
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
