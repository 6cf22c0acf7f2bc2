// Package client holds typed clients of the API groups machine.sapcloud.io,
// infrastructure.millwright.dev and vm.metropolis.monogon.dev, all generated from their types:
//
//   - clientset/versioned: a client for each kind, and a fake one for tests;
//   - listers: reading from caches, by kind;
//   - informers/externalversions: the caches;
//   - applyconfiguration: objects with only the fields that server-side apply shall own.
//
// The paths below this folder are those below pkg/client of Gardener's Machine Controller Manager,
// whose clients have the same names for the group machine.sapcloud.io.
package client
