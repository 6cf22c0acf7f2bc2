// Package guest tests the small guest: it boots in a real QEMU and joins a real control plane.
//
// The tests need QEMU (make qemu) and the guest's files (make guest).
package guest
