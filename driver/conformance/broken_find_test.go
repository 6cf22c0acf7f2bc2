package conformance_test

import (
	"bytes"
	"context"
	"strings"

	"github.com/go-logr/logr"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// withID returns a copy of a request with another provider ID.
func withID(req *driver.GetMachineStatusRequest, id string) *driver.GetMachineStatusRequest {
	other := &driver.GetMachineStatusRequest{Machine: req.Machine.DeepCopy(), MachineClass: req.MachineClass, Secret: req.Secret}
	other.Machine.Spec.ProviderID = id
	return other
}

// refind replaces one error code of GetMachineStatus by an error.
func refind(from codes.Code, to error) func(*world, *patched) {
	return onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		resp, err := next(ctx, req)
		if status.Is(err, from) {
			if to == nil && resp == nil {
				resp = &driver.GetMachineStatusResponse{ProviderID: "any", NodeName: req.Machine.Name}
			}
			return resp, to
		}
		return resp, err
	})
}

var brokenResponses = map[int]func(*world, *patched){
	38: onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		resp, err := next(ctx, req)
		if err == nil {
			resp.NodeName += "-other"
		}
		return resp, err
	}),
	39: func(w *world, p *patched) {
		made := &counter{}
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
			made.next(req.Machine.Name)
			return next(ctx, req)
		})(w, p)
		onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
			resp, err := next(ctx, req)
			if status.Is(err, codes.NotFound) && made.get(req.Machine.Name) == 0 {
				return nil, failing(codes.FailedPrecondition)
			}
			return resp, err
		})(w, p)
	},
	40: onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		resp, err := next(ctx, req)
		if err == nil && req.Machine.Spec.ProviderID == "" {
			return nil, failing(codes.NotFound)
		}
		return resp, err
	}),
	41: onFind(func(ctx context.Context, w *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		if _, there := w.vm(req.Machine.Spec.ProviderID); !there {
			req = withID(req, "")
		}
		return next(ctx, req)
	}),
	42: func(w *world, p *patched) {
		asked := &counter{}
		onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
			resp, err := next(ctx, req)
			if asked.next(req.Machine.Name) == 5 {
				w.vanish(req.Machine.Name)
			}
			return resp, err
		})(w, p)
	},
	43: onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		if req.Machine.Spec.ProviderID != "" && ofOther(req.MachineClass.ProviderSpec) {
			return nil, failing(codes.NotFound)
		}
		return next(ctx, req)
	}),
	44: onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		if req.Machine.Spec.ProviderID == "" && ofOther(req.MachineClass.ProviderSpec) {
			req = &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: classOf(spec), Secret: req.Secret}
		}
		return next(ctx, req)
	}),
	45: onFind(func(ctx context.Context, w *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		if vm, there := w.vm(req.Machine.Spec.ProviderID); there && !vm.GoneAt.IsZero() {
			return nil, failing(codes.NotFound)
		}
		return next(ctx, req)
	}),
	46: refind(codes.Unauthenticated, failing(codes.NotFound)),
	47: refind(codes.OutOfRange, nil),
	56: refind(codes.Uninitialized, nil),
	57: onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		resp, err := next(ctx, req)
		if status.Is(err, codes.Uninitialized) {
			resp = nil
		}
		return resp, err
	}),
}

var brokenLists = map[int]func(*world, *patched){
	49: onList(func(ctx context.Context, _ *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
		resp, err := next(ctx, req)
		if err == nil {
			for id, machine := range resp.MachineList {
				if strings.HasSuffix(machine, "-b") {
					delete(resp.MachineList, id)
				}
			}
		}
		return resp, err
	}),
	50: onList(func(ctx context.Context, w *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
		resp, err := next(ctx, req)
		if err != nil || !ofOther(req.MachineClass.ProviderSpec) {
			return resp, err
		}
		more, err := next(ctx, &driver.ListMachinesRequest{MachineClass: classOf(spec), Secret: req.Secret})
		if err == nil {
			for id, machine := range more.MachineList {
				resp.MachineList[id] = machine
			}
		}
		return resp, err
	}),
	51: onList(func(ctx context.Context, w *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
		resp, err := next(ctx, req)
		if err == nil {
			for id := range resp.MachineList {
				if vm, _ := w.vm(id); !vm.GoneAt.IsZero() {
					delete(resp.MachineList, id)
				}
			}
		}
		return resp, err
	}),
	52: onList(func(ctx context.Context, _ *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
		resp, err := next(ctx, req)
		seen := map[string]bool{}
		if err == nil {
			for id, machine := range resp.MachineList {
				if seen[machine] {
					delete(resp.MachineList, id)
				}
				seen[machine] = true
			}
		}
		return resp, err
	}),
	53: onList(func(ctx context.Context, _ *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
		resp, err := next(ctx, req)
		if status.Is(err, codes.Unauthenticated) {
			return &driver.ListMachinesResponse{}, nil
		}
		return resp, err
	}),
	55: onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		if driver.APIGroup(req.MachineClass) != "" {
			req = &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.MachineClass.DeepCopy(), Secret: req.Secret}
			req.MachineClass.Annotations = nil
		}
		return next(ctx, req)
	}),
}

// onEndedList replaces ListMachines for contexts that are done.
func onEndedList(respond func(ctx context.Context, w *world) error) func(*world, *patched) {
	return onList(func(ctx context.Context, w *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
		if ctx.Err() != nil {
			return nil, respond(ctx, w)
		}
		return next(ctx, req)
	})
}

var brokenErrors = map[int]func(*world, *patched){
	80: onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
		if ctx.Err() == context.Canceled {
			_, _ = next(context.WithoutCancel(ctx), req)
			return nil, failing(codes.Canceled)
		}
		return next(ctx, req)
	}),
	81: onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
		if ctx.Err() == context.DeadlineExceeded {
			return nil, failing(codes.Canceled)
		}
		return next(ctx, req)
	}),
	82: onEndedList(func(_ context.Context, w *world) error {
		<-w.over
		return failing(codes.Canceled)
	}),
	83: onEndedList(func(_ context.Context, w *world) error {
		go func() { <-w.over }()
		return failing(codes.Canceled)
	}),
	84: onEndedList(func(ctx context.Context, _ *world) error { return ctx.Err() }),
	85: onEndedList(func(context.Context, *world) error { return status.Error(codes.Canceled, "") }),
	86: onEndedList(func(context.Context, *world) error {
		return status.Error(codes.Canceled, "the request with "+token+" was canceled")
	}),
	87: onEndedList(func(context.Context, *world) error { return failing(codes.OutOfRange) }),
	91: onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
		resp, err := next(ctx, req)
		if err == nil {
			resp.LastKnownState = "\xff"
		}
		return resp, err
	}),
	92: onList(func(ctx context.Context, _ *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
		logr.FromContextOrDiscard(ctx).Info("Listing", "with", bytes.NewBuffer(req.Secret.Data["token"]).String())
		return next(ctx, req)
	}),
}
