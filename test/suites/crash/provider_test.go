package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

// reply is a driver's response on the wire.
type reply struct {
	Code     codes.Code
	Message  string
	Response json.RawMessage
}

// method executes an encoded call.
type method func(ctx context.Context, request []byte) reply

// methodOf makes a method of a driver callable with an encoded request.
func methodOf[Q, A any](call func(context.Context, *Q) (*A, error)) method {
	return func(ctx context.Context, request []byte) reply {
		q := new(Q)
		if err := json.Unmarshal(request, q); err != nil {
			return reply{Code: codes.InvalidArgument, Message: err.Error()}
		}
		response, err := call(ctx, q)
		result := reply{Code: codes.OK}
		if err != nil {
			failure, _ := status.FromError(err)
			result.Code, result.Message = failure.Code(), failure.Message()
		}
		if response != nil {
			if result.Response, err = json.Marshal(response); err != nil {
				return reply{Code: codes.Internal, Message: err.Error()}
			}
		}
		return result
	}
}

// simulated is a driver with all capabilities of the simulated one.
type simulated interface {
	driver.Driver
	driver.Initializer
	driver.VolumeIdentifier
	driver.APIGroupSeparator
	driver.Locator
	driver.ClassMigrator
	driver.Updater
}

// provider is the provider's side of the connection. It runs in the test's process, because providers and
// kubelets do not crash with a manager.
type provider struct {
	gate    *gate
	methods map[sim.Method]method
}

func newProvider(d simulated, g *gate) *provider {
	return &provider{gate: g, methods: map[sim.Method]method{
		sim.CreateMachine:                    methodOf(d.CreateMachine),
		sim.InitializeMachine:                methodOf(d.InitializeMachine),
		sim.DeleteMachine:                    methodOf(d.DeleteMachine),
		sim.GetMachineStatus:                 methodOf(d.GetMachineStatus),
		sim.ListMachines:                     methodOf(d.ListMachines),
		sim.GetVolumeIDs:                     methodOf(d.GetVolumeIDs),
		sim.UpdateMachine:                    methodOf(d.UpdateMachine),
		sim.GenerateMachineClassForMigration: methodOf(generate(d)),
	}}
}

// generate returns a class after filling it, because the caller's own class is on the other side of the
// connection.
func generate(d driver.ClassMigrator) func(context.Context, *driver.GenerateMachineClassForMigrationRequest) (*v1alpha1.MachineClass, error) {
	return func(ctx context.Context, q *driver.GenerateMachineClassForMigrationRequest) (*v1alpha1.MachineClass, error) {
		_, err := d.GenerateMachineClassForMigration(ctx, q)
		return q.MachineClass, err
	}
}

// providerPath is the URL path of the provider.
const providerPath = "/provider/"

// serve handles a call of a manager. If the response is lost, the call fails for the manager like a call over a
// network.
func (p *provider) serve(manager *process, w http.ResponseWriter, r *http.Request) {
	name := sim.Method(strings.TrimPrefix(r.URL.Path, providerPath))
	call, known := p.methods[name]
	if !known {
		http.NotFound(w, r)
		return
	}
	request, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the manager has disconnected
	}
	result := reply{}
	op := operation{"driver", string(name), p.gate.names.of(subject(request))}
	responded := p.gate.pass(manager, op, func() (idle bool) {
		result = call(context.WithoutCancel(r.Context()), request)
		p.gate.did(op, nil, questions[name]) // the request contains everything that the manager knows, used or not
		return questions[name]
	})
	if !responded {
		result = reply{Code: codes.DeadlineExceeded, Message: fmt.Sprintf("no response to %s", name)}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(result) // the manager handles a lost response
}

// subject reads from a request which object it is about.
func subject(request []byte) (resource, name string) {
	type object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	var about struct{ Machine, MachineClass object }
	_ = json.Unmarshal(request, &about) // an invalid request has no name
	if about.Machine.Metadata.Name != "" {
		return "machines", about.Machine.Metadata.Name
	}
	return "machineclasses", about.MachineClass.Metadata.Name
}
