package pluginserver

import (
	"net"

	"google.golang.org/grpc/credentials/insecure"
)

// InMemory returns an endpoint at a listener to which only this process can connect.
func InMemory(listener net.Listener) *Endpoint {
	return &Endpoint{listener: listener, credentials: insecure.NewCredentials()}
}

// MaxPerPeer is the maximum number of connections with one certificate.
const MaxPerPeer = maxPerPeer
