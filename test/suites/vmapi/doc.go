// Package vmapi tests the subresources of VirtualMachines through a real kube-apiserver: who may use them, and what
// reaches a virtual machine.
package vmapi
