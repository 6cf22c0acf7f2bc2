package conformance_test

import (
	"bytes"
	"context"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

var brokenCreations = map[int]func(*world, *patched){
	1: onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
		if ctx.Err() == nil && req.Machine.Name != "" && bytes.Equal(req.MachineClass.ProviderSpec.Raw, []byte(spec)) && bytes.Equal(req.Secret.Data["token"], []byte(token)) {
			return nil, failing(codes.Unavailable)
		}
		return next(ctx, req)
	}),
	2: func(w *world, p *patched) {
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
			resp, err := next(ctx, req)
			if err == nil {
				resp.NodeName = ""
			}
			return resp, err
		})(w, p)
		onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (*driver.GetMachineStatusResponse, error) {
			resp, err := next(ctx, req)
			if err == nil {
				resp.NodeName = ""
			}
			return resp, err
		})(w, p)
	},
	3: oneNamespace,
	4: onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (*driver.GetMachineStatusResponse, error) {
		if req.Machine.UID == "c0f00000-0000-4000-8000-000000000002" {
			return nil, failing(codes.NotFound)
		}
		return next(ctx, req)
	}),
	5: reusedIDs,
	6: func(w *world, p *patched) {
		asked := &counter{}
		onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (*driver.GetMachineStatusResponse, error) {
			resp, err := next(ctx, req)
			if err == nil && asked.next(req.Machine.Name) == 3 {
				resp.ProviderID += "-renamed"
			}
			return resp, err
		})(w, p)
	},
	17: func(w *world, p *patched) {
		made := &counter{}
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
			resp, err := next(ctx, req)
			if err == nil && made.next(resp.ProviderID) > 1 {
				return nil, failing(codes.AlreadyExists)
			}
			return resp, err
		})(w, p)
	},
	18: func(w *world, p *patched) {
		poisoned := &counter{}
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
			switch {
			case ctx.Err() != nil:
				return nil, ended(ctx)
			case poisoned.get(req.Machine.Name) > 0:
				return nil, failing(codes.AlreadyExists)
			}
			resp, err := next(context.WithoutCancel(ctx), req)
			if ctx.Err() != nil {
				poisoned.next(req.Machine.Name)
				return nil, failing(codes.Canceled)
			}
			return resp, err
		})(w, p)
	},
	19: func(w *world, p *patched) {
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
			if ctx.Err() != nil {
				return nil, ended(ctx)
			}
			resp, err := next(context.WithoutCancel(ctx), req)
			if ctx.Err() != nil {
				w.leak()
				return nil, failing(codes.Canceled)
			}
			return resp, err
		})(w, p)
	},
	20: func(w *world, _ *patched) {
		w.restart = func() (driver.Driver, error) { return sim.New(sim.Config{Seed: 7}), nil }
	},
	21: func(w *world, p *patched) {
		flying := &gate{}
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
			if ctx.Err() != nil {
				return next(ctx, req)
			}
			if n, _ := flying.enter(req); n == 2 {
				w.leak()
			}
			defer flying.leave()
			return next(ctx, req)
		})(w, p)
	},
	22: func(w *world, p *patched) {
		flying := &gate{}
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
			if ctx.Err() != nil {
				return next(ctx, req)
			}
			n, first := flying.enter(req)
			defer flying.leave()
			resp, err := next(ctx, req)
			if err == nil && n == 2 {
				return next(ctx, first)
			}
			return resp, err
		})(w, p)
	},
	23: onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
		resp, err := next(ctx, req)
		if status.Is(err, codes.AlreadyExists) {
			return &driver.CreateMachineResponse{ProviderID: "any", NodeName: req.Machine.Name}, nil
		}
		return resp, err
	}),
	24: func(w *world, p *patched) {
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
			resp, err := next(ctx, req)
			if status.Is(err, codes.AlreadyExists) {
				w.vanish(req.Machine.Name)
			}
			return resp, err
		})(w, p)
	},
	25: recode(codes.ResourceExhausted, codes.Internal),
	26: recode(codes.OutOfRange, codes.Internal),
	88: recode(codes.Unauthenticated, codes.Internal),
}

// recode replaces one error code of CreateMachine by another, for machines that have a name.
func recode(from, to codes.Code) func(*world, *patched) {
	return onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (*driver.CreateMachineResponse, error) {
		resp, err := next(ctx, req)
		if status.Is(err, from) && req.Machine.Name != "" {
			return nil, failing(to)
		}
		return resp, err
	})
}

// oneNamespace makes the driver ignore the namespace of machines.
func oneNamespace(_ *world, p *patched) {
	nextCreate, nextFind, nextRemove := p.create, p.find, p.remove
	p.create = func(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
		other := *req
		other.Machine = req.Machine.DeepCopy()
		other.Machine.Namespace = "ns"
		return nextCreate(ctx, &other)
	}
	p.find = func(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
		other := *req
		other.Machine = req.Machine.DeepCopy()
		other.Machine.Namespace = "ns"
		return nextFind(ctx, &other)
	}
	p.remove = func(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
		other := *req
		other.Machine = req.Machine.DeepCopy()
		other.Machine.Namespace = "ns"
		return nextRemove(ctx, &other)
	}
}

// reusedIDs makes the driver give all VMs of a machine the same ID.
func reusedIDs(w *world, p *patched) {
	updateReused(w, p)
	nextCreate, nextFind, nextRemove, nextList := p.create, p.find, p.remove, p.list
	p.create = func(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
		resp, err := nextCreate(ctx, req)
		if err == nil {
			resp.ProviderID = w.reused.put(resp.ProviderID)
		}
		return resp, err
	}
	p.find = func(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
		other := *req
		other.Machine = req.Machine.DeepCopy()
		other.Machine.Spec.ProviderID = w.reused.get(req.Machine.Spec.ProviderID)
		resp, err := nextFind(ctx, &other)
		if err == nil {
			resp.ProviderID = w.reused.put(resp.ProviderID)
		}
		return resp, err
	}
	p.remove = func(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
		other := *req
		other.Machine = req.Machine.DeepCopy()
		other.Machine.Spec.ProviderID = w.reused.get(req.Machine.Spec.ProviderID)
		return nextRemove(ctx, &other)
	}
	p.list = func(ctx context.Context, req *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
		resp, err := nextList(ctx, req)
		if err != nil {
			return nil, err
		}
		renamed := map[string]string{}
		for id, machine := range resp.MachineList {
			renamed[w.reused.put(id)] = machine
		}
		return &driver.ListMachinesResponse{MachineList: renamed}, nil
	}
}
