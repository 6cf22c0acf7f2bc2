// Package join makes the guest a Node and keeps it one.
//
// It does what a kubelet does, with a bootstrap token, a certificate signing request, a
// Node and a Lease. It runs no Pods: those that are bound to its Node are told so in their
// status, and end when they shall.
package join
