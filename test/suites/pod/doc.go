// Package pod tests the manager's image in Pods that a real kubelet runs, with containerd and runc.
//
// The tests need root and what hack/install-containerd.sh installs (make containerd).
package pod
