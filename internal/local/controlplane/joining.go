package controlplane

import (
	"context"
	_ "embed"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

//go:embed joining.yaml
var joining []byte

// AllowJoining lets nodes join by bootstrap token, as kubeadm does: bearers may ask for a
// kubelet's certificate, the controller manager approves that, and the ConfigMap
// kube-public/cluster-info tells everybody the authority, which the bearer of a token can
// verify. It may be repeated.
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
	published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"}}
	_, err = controllerutil.CreateOrPatch(ctx, c, published, func() error {
		if published.Data == nil {
			published.Data = map[string]string{}
		}
		// The other keys are signatures, which the bootstrap signer keeps.
		published.Data["kubeconfig"] = string(text)
		return nil
	})
	if err != nil {
		return fmt.Errorf("publishing the cluster's information: %w", err)
	}
	return nil
}
