// Package hostrunner runs the Pods of hypervisors as processes where there is no kubelet.
//
// [Run] plays one Node: it registers it, keeps its Lease and its status fresh, and runs
// the Pods that are bound to it as plain processes of this machine. It implements what
// Pods of hypervisors use (vmpb's container contract) and refuses all others.
//
// # A Pod's life
//
// Each Pod has one goroutine, its worker, which reconciles it whenever the Pod changes, the
// process ends or a timer fires. No decision depends on memory alone. The process outlives
// the host runner; package process documents how it is found again and why there is never
// a second one.
//
// # What lies in the folder
//
//	lock                     held while a host runner works here
//	pods/UID/pod.json        the Pod as it was last seen
//	pods/UID/root/           the container's mount paths, as links to the volumes
//	pods/UID/volumes/NAME/   volumes that live as long as the Pod
//	pods/UID/log, log.1      output of the process
//	pods/UID/process.*       see package process
//
// A process has no file system of its own: vmpb.EnvRoot tells it where the root folder
// is. It runs as the same user, in the same network, and is not held to its limits.
package hostrunner
