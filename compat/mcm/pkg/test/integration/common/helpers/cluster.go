// Package helpers holds the clients of the integration suite, at MCM's import path.
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

// Cluster has clients for a cluster of the suite, for the specifications that a provider adds.
type Cluster struct {
	// Clientset is for Kubernetes' own kinds.
	Clientset *kubernetes.Clientset
	// McmClient is for the kinds of machine.sapcloud.io, of which only a control cluster has CRDs.
	McmClient *versioned.Clientset
	// KubeConfigFilePath is the kubeconfig that both are made from.
	KubeConfigFilePath string
}

// NewCluster returns clients for the cluster of a kubeconfig. It does not ask the cluster anything.
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

// GetNumberOfNodes returns how many nodes there are; -1 if they cannot be listed.
func (c *Cluster) GetNumberOfNodes() int16 {
	return c.count(func(corev1.Node) bool { return true })
}

// GetNumberOfReadyNodes returns how many nodes are ready; -1 if they cannot be listed.
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

// Ready reports whether a node has the condition Ready.
func Ready(node corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
