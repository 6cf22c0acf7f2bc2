package conformance_test

import (
	"context"
	"strings"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

type updateResp = *driver.UpdateMachineResponse

// changeResponse changes the responses of UpdateMachine.
func changeResponse(change func(resp updateResp, req *driver.UpdateMachineRequest)) func(*world, *patched) {
	return func(_ *world, p *patched) {
		next := p.update
		p.update = func(ctx context.Context, req *driver.UpdateMachineRequest) (updateResp, error) {
			resp, err := next(ctx, req)
			if err == nil {
				change(resp, req)
			}
			return resp, err
		}
	}
}

// updateReused makes UpdateMachine find the VMs that reusedIDs creates.
func updateReused(w *world, p *patched) {
	next := p.update
	p.update = func(ctx context.Context, req *driver.UpdateMachineRequest) (updateResp, error) {
		other := *req
		other.Machine = req.Machine.DeepCopy()
		other.Machine.Spec.ProviderID = w.reused.get(req.Machine.Spec.ProviderID)
		return next(ctx, &other)
	}
}

func adds(req *driver.UpdateMachineRequest) bool {
	return strings.Contains(string(req.MachineClass.ProviderSpec.Raw), "blue")
}

var brokenUpdates = map[int]func(*world, *patched){
	98: func(_ *world, p *patched) {
		next := p.update
		p.update = func(ctx context.Context, req *driver.UpdateMachineRequest) (updateResp, error) {
			resp, err := next(ctx, req)
			if status.Is(err, codes.NotFound) && !req.DryRun {
				return &driver.UpdateMachineResponse{}, nil
			}
			return resp, err
		}
	},
	99: changeResponse(func(resp updateResp, req *driver.UpdateMachineRequest) {
		if req.MadeFrom.Raw == nil && adds(req) {
			resp.Updates = nil
		}
	}),
	100: changeResponse(func(resp updateResp, req *driver.UpdateMachineRequest) {
		if string(req.MachineClass.ProviderSpec.Raw) == spec {
			resp.Replacements = []string{"size"}
		}
	}),
	101: changeResponse(func(resp updateResp, req *driver.UpdateMachineRequest) {
		if string(req.MachineClass.ProviderSpec.Raw) == specChanged {
			resp.Updates, resp.Replacements = nil, nil
		}
	}),
	102: func(_ *world, p *patched) {
		next := p.update
		p.update = func(ctx context.Context, req *driver.UpdateMachineRequest) (updateResp, error) {
			really := *req
			really.DryRun = false
			return next(ctx, &really)
		}
	},
	103: changeResponse(func(resp updateResp, req *driver.UpdateMachineRequest) {
		if req.DryRun && adds(req) {
			resp.Updates = append(resp.Updates, "everything")
		}
	}),
	104: func(w *world, p *patched) {
		next := p.update
		p.update = func(ctx context.Context, req *driver.UpdateMachineRequest) (updateResp, error) {
			resp, err := next(ctx, req)
			if err != nil || req.DryRun || !adds(req) || len(resp.Updates) == 0 {
				return resp, err
			}
			return resp, w.add(req.Machine.Namespace, req.Machine.Name)
		}
	},
	105: func(_ *world, p *patched) {
		next := p.update
		p.update = func(ctx context.Context, req *driver.UpdateMachineRequest) (updateResp, error) {
			dry := *req
			dry.DryRun = true
			return next(ctx, &dry)
		}
	},
	107: func(_ *world, p *patched) {
		next := p.update
		p.update = func(ctx context.Context, req *driver.UpdateMachineRequest) (updateResp, error) {
			resp, err := next(ctx, req)
			if status.Is(err, codes.InvalidArgument) && !req.DryRun {
				return &driver.UpdateMachineResponse{}, nil
			}
			return resp, err
		}
	},
	108: changeResponse(func(resp updateResp, req *driver.UpdateMachineRequest) {
		if adds(req) && len(resp.Updates) > 0 {
			resp.Updates = append(resp.Updates, "token "+token)
		}
	}),
}
