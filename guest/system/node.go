package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/guest/metadata"
	"github.com/millwright-dev/millwright/guest/userdata"
)

// Node is what the system is to become. All fields are required.
type Node struct {
	Host
	// Data has the cluster and the Node.
	Data userdata.UserData
	// Authority finds the cluster's certificate authorities.
	Authority func(context.Context) ([]byte, error)
}

// Files of the system.
const (
	authorityFile   = "/etc/kubernetes/ca.crt"
	kubeletConfig   = "/etc/kubernetes/kubelet.json"
	bootstrapConfig = "/run/kubernetes/bootstrap.kubeconfig"
	nodeConfig      = "/var/lib/kubelet/kubeconfig"
)

// Run configures the system, and runs its services until the context ends, whose error it
// returns.
func (n *Node) Run(ctx context.Context) error {
	if err := n.prepare(ctx); err != nil {
		return fmt.Errorf("preparing the system: %w", err)
	}
	go n.Processes.Keep(ctx, n.service("containerd"))
	if err := n.configure(ctx); err != nil {
		return fmt.Errorf("configuring the kubelet: %w", err)
	}
	if err := n.importImages(ctx); err != nil {
		n.Logf("images: %v", err)
	}
	n.Logf("kubelet: starting as node %s", n.Data.NodeName)
	go n.Processes.Keep(ctx, n.service("kubelet", n.kubeletFlags()...))
	return n.connectPods(ctx)
}

// connectPods runs what connects Pods and Services, with the kubelet's credentials.
func (n *Node) connectPods(ctx context.Context) error {
	if err := exists(ctx, nodeConfig); err != nil {
		return err
	}
	go n.Processes.Keep(ctx, n.flannel(nodeConfig, n.Data.NodeName))
	n.Processes.Keep(ctx, n.service("kube-proxy", "--kubeconfig="+nodeConfig, "--hostname-override="+n.Data.NodeName,
		"--proxy-mode=nftables", "--cluster-cidr="+n.Data.PodNetwork))
	return ctx.Err()
}

// configure writes the kubelet's files.
func (n *Node) configure(ctx context.Context) error {
	// A later boot needs no token, which may have expired.
	authority, err := os.ReadFile(authorityFile)
	if errors.Is(err, os.ErrNotExist) {
		if authority, err = n.Authority(ctx); err == nil {
			err = write(authorityFile, string(authority), 0o644)
		}
	}
	if err != nil {
		return err
	}
	config, err := json.MarshalIndent(n.kubeletConfiguration(), "", "  ")
	if err != nil {
		return err
	}
	bootstrap, err := json.Marshal(n.bootstrapKubeconfig(authority))
	if err != nil {
		return err
	}
	return errors.Join(
		n.configureFlannel(n.Data.PodNetwork),
		write(kubeletConfig, string(config), 0o644),
		write(bootstrapConfig, string(bootstrap), 0o600),
	)
}

// object is a JSON object.
type object = map[string]any

func (n *Node) bootstrapKubeconfig(authority []byte) object {
	return object{
		"apiVersion": "v1", "kind": "Config", "current-context": "bootstrap",
		"clusters": []object{{"name": "cluster", "cluster": object{
			"server": n.Data.Server, "certificate-authority-data": authority,
		}}},
		"users":    []object{{"name": "bootstrap", "user": object{"token": n.Data.Token}}},
		"contexts": []object{{"name": "bootstrap", "context": object{"cluster": "cluster", "user": "bootstrap"}}},
	}
}

func (n *Node) kubeletConfiguration() object {
	config := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{"x509": object{"clientCAFile": authorityFile}},
		"cgroupDriver":   "cgroupfs", "containerRuntimeEndpoint": "unix://" + containerd,
		"resolvConf": "/etc/resolv.conf", "rotateCertificates": true, "providerID": n.Data.ProviderID,
	}
	if len(n.Data.Taints) > 0 {
		config["registerWithTaints"] = n.Data.Taints
	}
	return config
}

func (n *Node) kubeletFlags() []string {
	flags := []string{
		"--config=" + kubeletConfig, "--bootstrap-kubeconfig=" + bootstrapConfig, "--kubeconfig=" + nodeConfig,
		"--cert-dir=/var/lib/kubelet/pki", "--hostname-override=" + n.Data.NodeName, "--node-ip=" + nodeIPs(n.Links),
	}
	if labels := joined(n.Data.Labels); labels != "" {
		flags = append(flags, "--node-labels="+labels)
	}
	return flags
}

func nodeIPs(links []metadata.Link) string {
	var addresses []string
	for _, link := range links {
		addresses = append(addresses, netip.Addr.String(link.Address))
	}
	return strings.Join(addresses, ",")
}

func joined(labels map[string]string) string {
	var pairs []string
	for key, value := range labels {
		pairs = append(pairs, key+"="+value)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}
