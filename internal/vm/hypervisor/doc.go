// Package hypervisor is the process that runs one virtual machine.
//
// [ParseSpec] reads what the process knows about its VM, and [Run] lives that life:
// take the disk, ask the controller, prepare, start the guest, keep it as the
// controller wishes, and end it. The steps of the start are in start.go, what happens
// while the guest is there in serve.go. How QEMU is run is the business of the qemu
// package below; what is said to the controller of the controller package; what is
// served to others of the service package.
//
// Which of two processes may run a VM is never decided by looking at the other. Two
// locks keep them apart, ours beside the disk and QEMU's on it; the controller's
// answer only says who should go.
package hypervisor
