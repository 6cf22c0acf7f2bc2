// Package hypervisor is the process that runs one virtual machine.
//
// [ParseSpec] reads the VM's specification, and [Run] runs the VM: it locks the disk, asks
// the controller for authorization, prepares the disk, starts the guest, and serves until
// the end of either. The steps of the start are in start.go, what follows is in serve.go.
// Package qemu runs QEMU, package controller talks to the controller, and package service
// serves the gRPC API.
//
// Two processes never run one VM: two locks exclude each other, ours beside the disk and
// QEMU's on it. The controller's answer only decides which process should end.
package hypervisor
