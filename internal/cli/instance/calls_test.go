package instance

import (
	"context"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

// odd is the sim driver with modified responses.
type odd struct {
	*sim.Driver
	create     func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error)
	find       func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error)
	initialize func(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error)
	list       func(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error)
}

func newOdd(d *sim.Driver) *odd {
	return &odd{Driver: d, create: d.CreateMachine, find: d.GetMachineStatus, initialize: d.InitializeMachine, list: d.ListMachines}
}

func (o *odd) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	return o.create(ctx, req)
}

func (o *odd) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return o.find(ctx, req)
}

func (o *odd) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	return o.initialize(ctx, req)
}

func (o *odd) ListMachines(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return o.list(ctx, req)
}

// behave changes the driver for the following commands.
func (w *world) behave(change func(*odd)) {
	w.change = func(d *sim.Driver) driver.Driver {
		o := newOdd(d)
		change(o)
		return o
	}
}

// about adds the files to the arguments of a command.
func about(arguments ...string) []string {
	return append(arguments, "--class", "@class", "--secret", "@secret")
}

func unimplemented() error { return status.Error(codes.Unimplemented, "it is not there") }

// TestInstance_DriverReturnsNoResponse checks that a driver that returns no response is reported as faulty.
func TestInstance_DriverReturnsNoResponse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.behave(func(o *odd) {
		o.create = func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return nil, nil
		}
		o.list = func(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
			return nil, nil
		}
	})
	for _, arguments := range [][]string{about("create", "test"), about("list")} {
		if _, err := w.run(arguments...); !status.Is(err, codes.Internal) || !strings.Contains(err.Error(), "neither a response nor an error") {
			t.Errorf("%s: %v", arguments[0], err)
		}
	}
	w.behave(func(o *odd) {
		o.create = func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{NodeName: "n"}, nil
		}
		o.find = func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			panic("s3cr3t-token")
		}
	})
	if _, err := w.run(about("create", "test")...); !status.Is(err, codes.Internal) || strings.Contains(err.Error(), "s3cr3t-token") {
		t.Errorf("a driver that panics with a secret: %v", err)
	}
	w.behave(func(o *odd) {
		o.create = func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{NodeName: "n"}, nil
		}
	})
	if _, err := w.run(about("create", "test")...); err == nil || !strings.Contains(err.Error(), "no provider ID") {
		t.Errorf("a VM without an ID: %v", err)
	}
}

// TestInstance_InitializeReceivesProviderID checks that InitializeMachine receives the provider ID, as from the controllers.
func TestInstance_InitializeReceivesProviderID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.RequireInitialize = true
	var asked []string
	w.behave(func(o *odd) {
		next := o.initialize
		o.initialize = func(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
			asked = append(asked, req.Machine.Spec.ProviderID)
			if len(asked) == 1 {
				return nil, status.Error(codes.Unavailable, "later")
			}
			return next(ctx, req)
		}
	})
	_, err := w.run(about("create", "test")...)
	if !status.Is(err, codes.Unavailable) {
		t.Fatal(err)
	}
	w.must(about("create", "test")...)
	if len(asked) != 2 || asked[0] == "" || asked[0] != asked[1] {
		t.Errorf("initialized by the IDs %q", asked)
	}
}

// TestInstance_DeletionWaitsForProvider checks that the command waits until the provider responds.
func TestInstance_DeletionWaitsForProvider(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(about("create", "test")...)
	responses := []codes.Code{codes.Unavailable, codes.Unknown}
	w.behave(func(o *odd) {
		next := o.find
		o.find = func(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			if len(responses) == 0 {
				return next(ctx, req)
			}
			code := responses[0]
			responses = responses[1:]
			return nil, status.Error(code, "the cloud is away")
		}
	})
	if out := w.must(about("delete", "test")...); !strings.Contains(out, "State: Deleted") || len(responses) > 0 {
		t.Errorf("calls left: %v; output:\n%s", responses, out)
	}
	for _, want := range []string{"Waiting until the VM is gone", "Unavailable", "Unknown"} {
		if !strings.Contains(w.problems.String(), want) {
			t.Errorf("the progress lacks %q:\n%s", want, w.problems)
		}
	}
	w.behave(func(o *odd) {
		o.find = func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			return nil, status.Error(codes.PermissionDenied, "not you")
		}
	})
	if _, err := w.run(about("delete", "test")...); !status.Is(err, codes.PermissionDenied) {
		t.Errorf("a response that does not change: %v", err)
	}
}

// TestInstance_DeletionWithoutGetMachineStatus checks that the command does not claim what no driver method reports.
func TestInstance_DeletionWithoutGetMachineStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	blind := func(o *odd) {
		o.find = func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			return nil, unimplemented()
		}
	}
	w.must(about("create", "test")...)
	w.behave(blind)
	if out := w.must(about("delete", "test")...); !strings.Contains(out, "State: Deleted") {
		t.Errorf("with the list it prints:\n%s", out)
	}
	w.behave(func(o *odd) {
		blind(o)
		o.list = func(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
			return nil, unimplemented()
		}
	})
	if out := w.must(about("delete", "test")...); !strings.Contains(out, "State: Unknown") {
		t.Errorf("output of a driver that implements no method that reports the state:\n%s", out)
	}
}
