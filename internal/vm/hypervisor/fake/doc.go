// Package fake has a machine without QEMU and a controller without Kubernetes, for tests
// of the protocol between hypervisor and controller.
//
// Both are deterministic and use nothing but memory and the disk's file, so they work
// with testing/synctest.
package fake
