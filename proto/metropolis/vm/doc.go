// Package vmpb changes with metropolis.proto.vm, the protocol between VM controller,
// hypervisors and guests. Everything else in it is generated from vm.proto, where each
// message and method is documented.
package vmpb
