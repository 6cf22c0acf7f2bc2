// Package capi tests Millwright as an infrastructure provider of Cluster API, with the real core manager.
//
// Each directory vX.Y.Z contains the Go module from which hack/capi.sh builds one version of the core (and
// clusterctl). A test run uses one of them: that in MILLWRIGHT_CAPI, or else the newest. `make test` runs one
// scenario with that version, and `make test-all` runs all tests with both.
//
// All tests but one share a control plane with a controller manager, and one core, which runs with its own roles
// and webhooks. Each test has a namespace with a Cluster whose nodes join the same control plane, and a
// Millwright manager with the simulated driver.
//
// TestMillwrightMachine_BecomesVirtualMachine starts its own "millwright up", and follows the instructions of
// docs/get-started/cluster-api.md for one host: its nodes are guests of QEMU.
package capi
