// Package helpers contains the clients of the integration suite, at MCM's import path.
package helpers

import (
	"context"
	"errors"

	"github.com/millwright-dev/millwright/client/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster contains clients for a cluster of the suite, for specs that a provider adds.
type Cluster struct {
	// Clientset is for Kubernetes' own kinds.
	Clientset *kubernetes.Clientset
	// McmClient is for the kinds of machine.sapcloud.io, whose CRDs only a control cluster has.
	McmClient *versioned.Clientset
	// KubeConfigFilePath is the kubeconfig of both clients.
	KubeConfigFilePath string
}

// NewCluster returns clients for the cluster of a kubeconfig. It does not send requests to the cluster.
func NewCluster(kubeConfigPath string) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeConfigPath)
	if err != nil {
		return nil, err
	}
	clients, failed := kubernetes.NewForConfig(config)
	machines, err := versioned.NewForConfig(config)
	return &Cluster{Clientset: clients, McmClient: machines, KubeConfigFilePath: kubeConfigPath}, errors.Join(failed, err)
}

// ProbeNodes returns an error if the nodes cannot be listed.
func (c *Cluster) ProbeNodes() error {
	_, err := c.Clientset.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{Limit: 1})
	return err
}

// GetNumberOfNodes returns the number of nodes, or -1 if they cannot be listed.
func (c *Cluster) GetNumberOfNodes() int16 {
	return c.count(func(corev1.Node) bool { return true })
}

// GetNumberOfReadyNodes returns the number of ready nodes, or -1 if nodes cannot be listed.
func (c *Cluster) GetNumberOfReadyNodes() int16 { return c.count(Ready) }

func (c *Cluster) count(counts func(corev1.Node) bool) (found int16) {
	nodes, err := c.Clientset.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return -1
	}
	for _, node := range nodes.Items {
		if counts(node) {
			found++
		}
	}
	return found
}

// Ready reports whether a node's Ready condition is True.
func Ready(node corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
