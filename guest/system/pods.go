package system

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/guest/kube"
)

// Files that kubeadm writes.
const (
	kubeletAccess = "/etc/kubernetes/kubelet.conf"
	// adminAccess exists only on control planes.
	adminAccess = "/etc/kubernetes/admin.conf"
)

// connectPods runs flannel with the Node's credentials, once kubeadm has created them.
func (b *Bootstrap) connectPods(ctx context.Context) {
	if exists(ctx, kubeletAccess) != nil {
		return
	}
	var subnet string
	b.untilDone(ctx, func() (err error) {
		subnet, err = b.findPodNetwork(ctx, kubeletAccess)
		return err
	})
	if _, err := os.Stat(adminAccess); err == nil {
		b.untilDone(ctx, func() error { return allowFlannel(ctx, adminAccess) })
	}
	if ctx.Err() != nil {
		return
	}
	if subnet == "" {
		b.Node.Logf("flannel: the cluster has no IPv4 network of Pods")
		return
	}
	config := fmt.Sprintf(`{"Network": %q, "EnableNFTables": true, "Backend": {"Type": "vxlan"}}`, subnet)
	if err := write(flannelConfig, config, 0o644); err != nil {
		b.Node.Logf("flannel: %v", err)
		return
	}
	b.Node.Processes.Keep(ctx, b.Node.flannel(kubeletAccess))
}

// apiPause is the pause before a request to the API server is retried.
const apiPause = 2 * time.Second

// untilDone repeats a step until it succeeds or ctx is done. Failures are expected and not logged: the API server
// may not be running yet, and the kubelet may not have a certificate.
func (b *Bootstrap) untilDone(ctx context.Context, step func() error) {
	for step() != nil && wait(ctx, apiPause) == nil {
	}
}

// kubeadmConfig is the ConfigMap of kubeadm, which Nodes may read.
const kubeadmConfig = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config"

// findPodNetwork reads the cluster's configuration with the credentials of the Node, and stores the Node's name,
// because kubeadm may have chosen another one. It returns the network of Pods, or an empty string if the cluster
// has none.
func (b *Bootstrap) findPodNetwork(ctx context.Context, path string) (string, error) {
	access, err := readAccess(path)
	if err != nil {
		return "", err
	}
	client, err := kube.New(access)
	if err != nil {
		return "", err
	}
	defer client.Close()
	var found struct {
		Data struct{ ClusterConfiguration string }
	}
	if err := client.Get(ctx, kubeadmConfig, &found); err != nil {
		return "", err
	}
	b.Node.Data.NodeName = strings.TrimPrefix(access.Certificate.Leaf.Subject.CommonName, "system:node:")
	return ipv4Subnet(found.Data.ClusterConfiguration)
}

// ipv4Subnet returns the first IPv4 network of Pods in kubeadm's configuration, or an empty string if there is
// none.
func ipv4Subnet(configuration string) (string, error) {
	var config struct {
		Networking struct{ PodSubnet string }
	}
	if err := yaml.Unmarshal([]byte(configuration), &config); err != nil {
		return "", err
	}
	for text := range strings.SplitSeq(config.Networking.PodSubnet, ",") {
		if prefix, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && prefix.Addr().Is4() {
			return prefix.Masked().String(), nil
		}
	}
	return "", nil
}

// allowFlannel lets Nodes read other Nodes, whose annotations contain their addresses.
func allowFlannel(ctx context.Context, path string) error {
	access, err := readAccess(path)
	if err != nil {
		return err
	}
	client, err := kube.New(access)
	if err != nil {
		return err
	}
	defer client.Close()
	const name, group = "millwright:flannel", "rbac.authorization.k8s.io"
	described := func(kind string) object {
		return object{"apiVersion": group + "/v1", "kind": kind, "metadata": object{"name": name}}
	}
	role, binding := described("ClusterRole"), described("ClusterRoleBinding")
	role["rules"] = []object{{"apiGroups": []string{""}, "resources": []string{"nodes"}, "verbs": []string{"get", "list", "watch"}}}
	binding["roleRef"] = object{"apiGroup": group, "kind": "ClusterRole", "name": name}
	binding["subjects"] = []object{{"apiGroup": group, "kind": "Group", "name": "system:nodes"}}
	for path, created := range map[string]object{"clusterroles": role, "clusterrolebindings": binding} {
		err := client.Post(ctx, "/apis/"+group+"/v1/"+path, created, nil)
		if err != nil && !kube.IsStatus(err, http.StatusConflict) {
			return err
		}
	}
	return nil
}

// kubeconfig contains the fields of kubeadm's kubeconfig files.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			Server    string `json:"server"`
			Authority []byte `json:"certificate-authority-data"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		User struct {
			CertificateData []byte `json:"client-certificate-data"`
			KeyData         []byte `json:"client-key-data"`
			Certificate     string `json:"client-certificate"`
			Key             string `json:"client-key"`
		} `json:"user"`
	} `json:"users"`
}

// readAccess reads a kubeconfig with one cluster and one user, who has a certificate.
func readAccess(path string) (kube.Access, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return kube.Access{}, err
	}
	var config kubeconfig
	if err := yaml.Unmarshal(content, &config); err != nil {
		return kube.Access{}, fmt.Errorf("%s is not a kubeconfig", path) // the error might contain a key
	}
	if len(config.Clusters) != 1 || len(config.Users) != 1 {
		return kube.Access{}, fmt.Errorf("%s does not have exactly one cluster and one user", path)
	}
	cluster, user := config.Clusters[0].Cluster, config.Users[0].User
	certificate, err := contentOf(user.CertificateData, user.Certificate)
	key, keyErr := contentOf(user.KeyData, user.Key)
	if err := errors.Join(err, keyErr); err != nil {
		return kube.Access{}, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return kube.Access{}, err
	}
	return kube.Access{Server: cluster.Server, Authority: cluster.Authority, Certificate: pair}, nil
}

// contentOf returns the data, or otherwise the content of the file.
func contentOf(data []byte, path string) ([]byte, error) {
	if len(data) > 0 {
		return data, nil
	}
	return os.ReadFile(cmp.Or(path, os.DevNull))
}
