package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

// remote is the manager's side of the connection to the provider.
type remote struct{ url string }

var _ simulated = remote{}

// SeparatesAPIGroups implements driver.APIGroupSeparator, as the simulated driver does.
func (r remote) SeparatesAPIGroups() bool { return true }

// LocateMachine implements driver.Locator, as the simulated driver does. It needs no provider, so it makes no
// call.
func (r remote) LocateMachine(ctx context.Context, q *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	return sim.New(sim.Config{}).LocateMachine(ctx, q)
}

func ask[A any](ctx context.Context, r remote, name sim.Method, request any) (*A, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, status.WrapError(codes.Internal, "writing the request", err)
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+providerPath+string(name), bytes.NewReader(body))
	if err != nil {
		return nil, status.WrapError(codes.Internal, "making the request", err)
	}
	response, err := http.DefaultClient.Do(post)
	if err != nil {
		return nil, status.WrapError(codes.Unavailable, fmt.Sprintf("calling the provider: %v", err), err)
	}
	defer response.Body.Close()
	var received reply
	if err := json.NewDecoder(response.Body).Decode(&received); err != nil {
		return nil, status.WrapError(codes.Unavailable, fmt.Sprintf("reading the provider's response: %v", err), err)
	}
	return unpack[A](received)
}

func unpack[A any](received reply) (*A, error) {
	var result *A
	if len(received.Response) > 0 {
		result = new(A)
		if err := json.Unmarshal(received.Response, result); err != nil {
			return nil, status.WrapError(codes.Internal, "reading the provider's response", err)
		}
	}
	if received.Code != codes.OK {
		return result, status.Error(received.Code, received.Message)
	}
	return result, nil
}

func (r remote) CreateMachine(ctx context.Context, q *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return ask[driver.CreateMachineResponse](ctx, r, sim.CreateMachine, q)
}

func (r remote) InitializeMachine(ctx context.Context, q *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return ask[driver.InitializeMachineResponse](ctx, r, sim.InitializeMachine, q)
}

func (r remote) DeleteMachine(ctx context.Context, q *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	return ask[driver.DeleteMachineResponse](ctx, r, sim.DeleteMachine, q)
}

func (r remote) GetMachineStatus(ctx context.Context, q *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return ask[driver.GetMachineStatusResponse](ctx, r, sim.GetMachineStatus, q)
}

func (r remote) ListMachines(ctx context.Context, q *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return ask[driver.ListMachinesResponse](ctx, r, sim.ListMachines, q)
}

func (r remote) GetVolumeIDs(ctx context.Context, q *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return ask[driver.GetVolumeIDsResponse](ctx, r, sim.GetVolumeIDs, q)
}

func (r remote) UpdateMachine(ctx context.Context, q *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	return ask[driver.UpdateMachineResponse](ctx, r, sim.UpdateMachine, q)
}

func (r remote) GenerateMachineClassForMigration(ctx context.Context, q *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	class, err := ask[v1alpha1.MachineClass](ctx, r, sim.GenerateMachineClassForMigration, q)
	if err != nil {
		return nil, err
	}
	*q.MachineClass = *class
	return &driver.GenerateMachineClassForMigrationResponse{}, nil
}
