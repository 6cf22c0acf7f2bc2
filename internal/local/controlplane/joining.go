package controlplane

import (
	"context"
	_ "embed"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

//go:embed joining.yaml
var joining []byte

// AllowJoining lets nodes join by bootstrap token, as kubeadm does: bearers may ask for a
// kubelet's certificate, the controller manager approves that, and the ConfigMap
// kube-public/cluster-info tells everybody the authority, which the bearer of a token can
// verify. It may be repeated, also at the same time.
func (cp *ControlPlane) AllowJoining(ctx context.Context) error {
	c, err := client.New(cp.RESTConfig(), client.Options{})
	if err != nil {
		return fmt.Errorf("letting nodes join: %w", err)
	}
	if err := ApplyText(ctx, c, joining, ""); err != nil {
		return fmt.Errorf("letting nodes join: %w", err)
	}
	info := clientcmdapi.NewConfig()
	info.Clusters[""] = &clientcmdapi.Cluster{Server: cp.URL(), CertificateAuthorityData: cp.CAData()}
	text, err := clientcmd.Write(*info)
	if err != nil {
		return fmt.Errorf("writing the cluster's information: %w", err)
	}
	// The other keys are signatures, which belong to the bootstrap signer.
	published := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"namespace": metav1.NamespacePublic, "name": "cluster-info"},
		"data":     map[string]any{"kubeconfig": string(text)},
	}}
	if err := applyObject(ctx, c, published, ""); err != nil {
		return fmt.Errorf("publishing the cluster's information: %w", err)
	}
	return nil
}
