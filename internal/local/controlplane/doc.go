// Package controlplane runs a Kubernetes control plane on this machine.
//
// [Start] runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler
// as supervised child processes on loopback ports, with certificates of its own
// making. It is the only launcher of control planes in this repository: local
// mode and the tests both use it, so there is one set of flags. Several control
// planes can run side by side in one process, each in a folder of its own.
//
// # What lies in the folder
//
//	kubeconfig      for the administrator
//	pki/            certificates and keys
//	credentials/    kubeconfigs of the components
//	etcd/           the data
//	logs/           one file per component, and audit.log
//	run/            one file per running child, for the next Start
//	ports.json      the ports, used again while they are free
//	lock            held while a process uses the folder
//
// # Left-over children
//
// Children end with their parent: the kernel sends them a signal when it ends. Should one
// survive, the next Start finds it by its file in run/, verifies by the start time that it
// is the same process, and ends it first.
package controlplane
