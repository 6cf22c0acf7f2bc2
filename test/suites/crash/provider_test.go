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

// reply is a driver's answer on the wire.
type reply struct {
	Code     codes.Code
	Message  string
	Response json.RawMessage
}

// method carries a call out whose request is on the wire.
type method func(ctx context.Context, request []byte) reply

// methodOf puts a method of a driver behind the wire.
func methodOf[Q, A any](call func(context.Context, *Q) (*A, error)) method {
	return func(ctx context.Context, request []byte) reply {
		q := new(Q)
		if err := json.Unmarshal(request, q); err != nil {
			return reply{Code: codes.InvalidArgument, Message: err.Error()}
		}
		response, err := call(ctx, q)
		answer := reply{Code: codes.OK}
		if err != nil {
			failure, _ := status.FromError(err)
			answer.Code, answer.Message = failure.Code(), failure.Message()
		}
		if response != nil {
			if answer.Response, err = json.Marshal(response); err != nil {
				return reply{Code: codes.Internal, Message: err.Error()}
			}
		}
		return answer
	}
}

// simulated is a driver with all that the simulated one can do.
type simulated interface {
	driver.Driver
	driver.Initializer
	driver.VolumeIdentifier
	driver.APIGroupSeparator
	driver.Locator
	driver.ClassMigrator
	driver.Updater
}

// provider is the provider's end of the wire. It lives in the test's process, as clouds
// and kubelets do not die with a manager.
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

// generate returns what fills a class, and returns it: the caller's own is at the other end of the wire.
func generate(d driver.ClassMigrator) func(context.Context, *driver.GenerateMachineClassForMigrationRequest) (*v1alpha1.MachineClass, error) {
	return func(ctx context.Context, q *driver.GenerateMachineClassForMigrationRequest) (*v1alpha1.MachineClass, error) {
		_, err := d.GenerateMachineClassForMigration(ctx, q)
		return q.MachineClass, err
	}
}

// providerPath is where a manager finds the provider.
const providerPath = "/provider/"

// serve answers a call of a manager. One whose answer gets lost ends for it as a call
// over a network would.
func (p *provider) serve(manager *process, w http.ResponseWriter, r *http.Request) {
	name := sim.Method(strings.TrimPrefix(r.URL.Path, providerPath))
	call, known := p.methods[name]
	if !known {
		http.NotFound(w, r)
		return
	}
	request, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the manager's end
	}
	answer := reply{}
	op := operation{"driver", string(name), p.gate.names.of(subject(request))}
	answered := p.gate.pass(manager, op, func() (idle bool) {
		answer = call(context.WithoutCancel(r.Context()), request)
		p.gate.did(op, nil, questions[name]) // the request has all that the manager knows, used or not
		return questions[name]
	})
	if !answered {
		answer = reply{Code: codes.DeadlineExceeded, Message: fmt.Sprintf("no answer to %s", name)}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the manager's loss
}

// subject reads from a request which object it is about.
func subject(request []byte) (resource, name string) {
	type object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	var about struct{ Machine, MachineClass object }
	_ = json.Unmarshal(request, &about) // what cannot be read has no name
	if about.Machine.Metadata.Name != "" {
		return "machines", about.Machine.Metadata.Name
	}
	return "machineclasses", about.MachineClass.Metadata.Name
}
