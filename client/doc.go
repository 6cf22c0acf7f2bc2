// Package client contains typed clients for the API groups machine.sapcloud.io, infrastructure.millwright.dev and
// vm.metropolis.monogon.dev. They are generated from the types:
//
//   - clientset/versioned: a client for each kind, and a fake client for tests
//   - listers: access to cached objects, by kind
//   - informers/externalversions: the caches
//   - applyconfiguration: objects that contain only the fields to own with server-side apply
//
// The paths below this directory match those below pkg/client of Gardener's Machine Controller Manager, whose
// clients have the same names for the group machine.sapcloud.io.
package client
