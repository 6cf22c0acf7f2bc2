// Package service changes when what a hypervisor process serves to others does: to
// whoever may open its socket, and to its peers over the network.
package service
