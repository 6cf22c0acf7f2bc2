// Package subresources names the aggregated API by which users reach consoles, logs, displays and TCP ports of
// VirtualMachines, and reset, pause and migrate them.
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

// PortForwardProtocol is the WebSocket protocol of a forwarded connection. Each binary message is a piece of the
// connection's data. An empty one from the client closes its direction of the connection. The server closes the
// WebSocket, with the status 1000, when the guest sends no more. It sends no other messages, and ignores others.
const PortForwardProtocol = "v1.portforward.vm.metropolis.monogon.dev"

// VNCProtocol is the WebSocket protocol of a display. Each binary message is a piece of the RFB protocol (RFC 6143), whose
// server is the hypervisor. It does not authenticate viewers. An empty message from the client disconnects the viewer. The
// server sends only binary messages, and ignores all others.
const VNCProtocol = "v1.vnc.vm.metropolis.monogon.dev"

// ScreenshotType is the media type of a screenshot.
const ScreenshotType = "image/png"

// Parameters of requests.
const (
	// PortParameter is the TCP port of the guest that a connection is forwarded to, 1 to 65535. Required.
	PortParameter = "port"
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
