//go:build kubeadm

package main

import (
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
)

// kubeadm makes the executable a ninth larger, so only guests whose control plane it sets up have it.
func init() {
	programs["kubeadm"] = func([]string) { errors.HandleError(kubeadm.Run()) }
}
