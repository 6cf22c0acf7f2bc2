// Package subresources names the aggregated API by which users reach consoles and logs of VirtualMachines, and reset and
// migrate them.
package subresources

const (
	// Group of the API.
	Group = "subresources.vm.metropolis.monogon.dev"
	// Version of the API.
	Version = "v1alpha1"
	// Resource is the only one. It has no objects of its own: those are of the kind VirtualMachine.
	Resource = "virtualmachines"
)

// ConsoleProtocol is the WebSocket protocol of a console. Each binary message is a piece of the serial port's
// traffic. The server sends no others, and ignores others.
const ConsoleProtocol = "v1.console.vm.metropolis.monogon.dev"

// Parameters of requests.
const (
	// ReplayParameter lets a console begin with the last output, up to 64 KiB: true or false, the default.
	ReplayParameter = "replay"
	// FollowParameter lets a log continue until the VM terminates: true or false, the default.
	FollowParameter = "follow"
)

// MigrateOptions is the body of a request to migrate. It may be absent.
type MigrateOptions struct {
	// NodeName is the name of the host to migrate to. If empty, any host is chosen.
	NodeName string `json:"nodeName,omitempty"`
}
