// Package service serves a hypervisor's gRPC API: on a unix socket to local users, and on
// the network to its peers.
package service
