package hypervisor

import (
	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
)

// ControllerDialOptions are for Config.Connect, beside credentials; see
// controller.DialOptions for what they ask of the server.
func ControllerDialOptions() []grpc.DialOption { return controller.DialOptions() }

// DialSocket returns a connection to OOBManagement and grpc.health.v1 of a hypervisor
// on the same host, by Paths.Socket. A path of any length will do. The error wraps
// fs.ErrNotExist where there is no socket; whether anybody listens, the first call
// tells.
func DialSocket(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return service.DialSocket(path, options...)
}
