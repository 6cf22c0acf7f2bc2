// Package storagepb is the protocol that the VM controller uses to control which hypervisor may use the disks of a
// virtual machine. It is generated from storage.proto, which documents all messages and methods.
package storagepb
