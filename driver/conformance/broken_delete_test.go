package conformance_test

import (
	"bytes"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

type (
	createResp = *driver.CreateMachineResponse
	removeResp = *driver.DeleteMachineResponse
	findResp   = *driver.GetMachineStatusResponse
	listResp   = *driver.ListMachinesResponse
)

var brokenRequests = map[int]func(*world, *patched){
	7: onFind(func(ctx context.Context, _ *world, req *driver.GetMachineStatusRequest, next find) (findResp, error) {
		resp, err := next(ctx, req)
		req.Machine.Spec.ProviderID = "changed"
		return resp, err
	}),
	8: func(w *world, p *patched) {
		var last *runtime.RawExtension
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
			if bytes.Equal(req.MachineClass.ProviderSpec.Raw, []byte(spec)) {
				last = &req.MachineClass.ProviderSpec
			}
			return next(ctx, req)
		})(w, p)
		onList(func(ctx context.Context, _ *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
			if last != nil && bytes.Equal(last.Raw, []byte("reused")) {
				return nil, failing(codes.InvalidArgument)
			}
			return next(ctx, req)
		})(w, p)
	},
	10: onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if len(req.Machine.Labels) == 0 {
			return nil, failing(codes.InvalidArgument)
		}
		return next(ctx, req)
	}),
	12: recode(codes.InvalidArgument, codes.Internal),
	13: onList(func(ctx context.Context, _ *world, req *driver.ListMachinesRequest, next list) (listResp, error) {
		resp, err := next(ctx, req)
		if status.Is(err, codes.InvalidArgument) {
			return &driver.ListMachinesResponse{}, nil
		}
		return resp, err
	}),
	14: func(w *world, p *patched) {
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
			resp, err := next(ctx, req)
			if status.Is(err, codes.InvalidArgument) {
				w.leak()
			}
			return resp, err
		})(w, p)
	},
	15: onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
		if req.Machine.Name == "" {
			return nil, failing(codes.Internal)
		}
		return next(ctx, req)
	}),
	16: onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if req.Machine.Name == "" {
			return &driver.DeleteMachineResponse{}, nil
		}
		return next(ctx, req)
	}),
	109: onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if bytes.Contains(req.MachineClass.ProviderSpec.Raw, []byte("unknown")) {
			return nil, failing(codes.InvalidArgument)
		}
		return next(ctx, req)
	}),
}

// ofOther reports whether a class belongs to the other cluster.
func ofOther(spec runtime.RawExtension) bool { return bytes.Contains(spec.Raw, []byte("one-other")) }

// elsewhere deletes the VM of another machine.
func deleteOther(ctx context.Context, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
	other := *req
	other.Machine = req.Machine.DeepCopy()
	other.Machine.Spec.ProviderID = ""
	other.Machine.Name += "-elsewhere"
	return next(ctx, &other)
}

var brokenDeletions = map[int]func(*world, *patched){
	29: onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if req.Machine.Name == "" {
			return next(ctx, req)
		}
		return deleteOther(ctx, req, next)
	}),
	30: func(w *world, p *patched) {
		made := &counter{}
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
			made.next(req.Machine.Name)
			return next(ctx, req)
		})(w, p)
		onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
			resp, err := next(ctx, req)
			if err == nil && made.get(req.Machine.Name) == 0 {
				return nil, failing(codes.FailedPrecondition)
			}
			return resp, err
		})(w, p)
	},
	31: onRemove(func(ctx context.Context, w *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		gone := req.Machine.Spec.ProviderID != "" && !w.has(req.Machine.Name)
		resp, err := next(ctx, req)
		if err == nil && gone {
			return nil, failing(codes.FailedPrecondition)
		}
		return resp, err
	}),
	32: onRemove(func(ctx context.Context, w *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if req.Machine.Spec.ProviderID == "" && w.has(req.Machine.Name) {
			return deleteOther(ctx, req, next)
		}
		return next(ctx, req)
	}),
	33: onRemove(func(ctx context.Context, w *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if _, exists := w.vm(req.Machine.Spec.ProviderID); !exists {
			req = &driver.DeleteMachineRequest{Machine: req.Machine.DeepCopy(), MachineClass: req.MachineClass, Secret: req.Secret}
			req.Machine.Spec.ProviderID = ""
		}
		return next(ctx, req)
	}),
	34: onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if req.Machine.Spec.ProviderID != "" && ofOther(req.MachineClass.ProviderSpec) {
			return deleteOther(ctx, req, next)
		}
		return next(ctx, req)
	}),
	35: onRemove(func(ctx context.Context, w *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if req.Machine.Spec.ProviderID == "" && ofOther(req.MachineClass.ProviderSpec) {
			w.vanish(req.Machine.Name)
		}
		return next(ctx, req)
	}),
	36: func(w *world, p *patched) {
		removed := &counter{}
		onCreate(func(ctx context.Context, req *driver.CreateMachineRequest, next create) (createResp, error) {
			before := removed.get(req.Machine.Name)
			time.Sleep(5 * time.Millisecond) // on the fake clock, like the next one
			if removed.get(req.Machine.Name) != before {
				w.leak()
			}
			return next(ctx, req)
		})(w, p)
		onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
			time.Sleep(time.Millisecond)
			removed.next(req.Machine.Name)
			return next(ctx, req)
		})(w, p)
	},
	37: onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		if bytes.Equal(req.MachineClass.ProviderSpec.Raw, []byte(spec)) {
			req = &driver.DeleteMachineRequest{Machine: req.Machine, MachineClass: classOf(specDeletion), Secret: req.Secret}
		}
		return next(ctx, req)
	}),
	89: onRemove(func(ctx context.Context, _ *world, req *driver.DeleteMachineRequest, next remove) (removeResp, error) {
		_, err := next(ctx, req)
		return nil, err
	}),
}
