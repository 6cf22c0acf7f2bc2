// Package qemu runs one virtual machine with QEMU.
//
// A [Config] says what the machine is, and [Start] runs it as a child process, with
// the guest stopped until [Process.Cont]. Three sockets connect the two from the start:
// QMP, the serial console and the guest agent's port. They are inherited, not made
// in a folder, so nobody else can connect to them, and no path is too long.
//
// Nothing here decides whether a machine may run, and nothing knows of Kubernetes.
// What guards a disk against two machines is QEMU's own lock: see [ErrDiskLocked].
package qemu
