// Package vmpb is metropolis.proto.vm, the protocol between VM controller, hypervisors and
// guests. It is generated from vm.proto, which documents each message and method, except
// for the constants of the hypervisor's container.
package vmpb
