// Package capi tests Millwright as an infrastructure provider of Cluster API, against the
// real core manager.
//
// Each folder vX.Y.Z holds the Go module from which hack/capi.sh builds one version of the
// core (and clusterctl). A run of the tests uses one of them: that in MILLWRIGHT_CAPI, or
// else the newest. `make test` runs one story with that one, `make test-all` all tests with both.
//
// All tests but one share a control plane with a controller manager, and one core, which
// runs under its own roles and with its webhooks. Each test has a namespace, and in it a
// Cluster whose nodes join the very same control plane, and a Millwright manager with the
// simulated driver.
//
// TestMachinesAreVirtualMachines has a "millwright up" of its own, and does what
// docs/cluster-api.md says to do on one machine: its nodes are guests of QEMU.
package capi
