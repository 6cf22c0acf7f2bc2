// Package guest changes when the stories that the small guest is tested with do: it boots
// in a real QEMU and joins a real control plane.
//
// The tests need QEMU (make qemu) and the guest's files (make guest).
package guest
