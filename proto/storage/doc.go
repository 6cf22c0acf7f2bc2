// Package storagepb is the protocol by which the VM controller says which hypervisor may use the disks of a
// virtual machine. It is generated from storage.proto.
package storagepb
