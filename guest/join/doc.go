// Package join changes when the way in which the guest becomes a Node and stays one
// does.
//
// It does what a kubelet does, with a bootstrap token, a certificate signing request, a
// Node and a Lease, and runs no Pods.
package join
