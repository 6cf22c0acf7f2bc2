// Package vms contains scenarios with the whole program and real virtual machines. They check from the outside
// what "millwright up" promises. Unlike test/suites/scenario, whose machines are simulated, they need QEMU and
// the guest that "make guest" builds.
package vms
