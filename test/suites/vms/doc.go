// Package vms holds scenarios with the whole program and real virtual machines: what
// "millwright up" promises, seen from outside. Unlike those of test/suites/scenario, whose
// machines are simulated, they need QEMU and the guest that "make guest" builds.
package vms
