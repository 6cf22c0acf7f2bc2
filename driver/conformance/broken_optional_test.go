package conformance_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

type (
	initResp    = *driver.InitializeMachineResponse
	volumesResp = *driver.GetVolumeIDsResponse
	domainsResp = *driver.ListFailureDomainsResponse
	placeResp   = *driver.PlaceMachineResponse
	locateResp  = *driver.LocateMachineResponse
	migrateResp = *driver.GenerateMachineClassForMigrationResponse
)

// relocate changes the locations that a driver returns.
func relocate(change func(location string, req *driver.LocateMachineRequest) string) func(*world, *patched) {
	return func(_ *world, p *patched) {
		next := p.locate
		p.locate = func(ctx context.Context, req *driver.LocateMachineRequest) (locateResp, error) {
			resp, err := next(ctx, req)
			if err == nil {
				resp.Location = change(resp.Location, req)
			}
			return resp, err
		}
	}
}

// redomain changes the failure domains that a driver returns.
func redomain(change func([]driver.FailureDomain) []driver.FailureDomain) func(*world, *patched) {
	return func(_ *world, p *patched) {
		next := p.domains
		p.domains = func(ctx context.Context, req *driver.ListFailureDomainsRequest) (domainsResp, error) {
			resp, err := next(ctx, req)
			if err == nil {
				resp.FailureDomains = change(resp.FailureDomains)
			}
			return resp, err
		}
	}
}

// reidentify changes the volume IDs that a driver returns.
func reidentify(change func(ids []string, req *driver.GetVolumeIDsRequest) []string) func(*world, *patched) {
	return func(_ *world, p *patched) {
		next := p.volumes
		p.volumes = func(ctx context.Context, req *driver.GetVolumeIDsRequest) (volumesResp, error) {
			resp, err := next(ctx, req)
			if err == nil {
				resp.VolumeIDs = change(resp.VolumeIDs, req)
			}
			return resp, err
		}
	}
}

var brokenOptions = map[int]func(*world, *patched){
	58: func(_ *world, p *patched) {
		next, done := p.initialize, &counter{}
		p.initialize = func(ctx context.Context, req *driver.InitializeMachineRequest) (initResp, error) {
			resp, err := next(ctx, req)
			if err == nil && done.next(resp.ProviderID) > 1 {
				return nil, failing(codes.AlreadyExists)
			}
			return resp, err
		}
	},
	59: func(_ *world, p *patched) {
		p.initialize = func(ctx context.Context, req *driver.InitializeMachineRequest) (initResp, error) {
			found, err := p.find(ctx, &driver.GetMachineStatusRequest{Machine: req.Machine, MachineClass: req.MachineClass, Secret: req.Secret})
			if found == nil {
				return nil, err
			}
			return &driver.InitializeMachineResponse{ProviderID: found.ProviderID, NodeName: found.NodeName}, nil
		}
	},
	60: func(_ *world, p *patched) {
		next := p.initialize
		p.initialize = func(ctx context.Context, req *driver.InitializeMachineRequest) (initResp, error) {
			resp, err := next(ctx, req)
			if status.Is(err, codes.NotFound) {
				return nil, failing(codes.Internal)
			}
			return resp, err
		}
	},
	62: reidentify(func([]string, *driver.GetVolumeIDsRequest) []string { return nil }),
	63: reidentify(func(ids []string, req *driver.GetVolumeIDsRequest) []string {
		for _, pv := range req.PVSpecs {
			if pv.NFS != nil {
				ids = append(ids, pv.NFS.Path)
			}
		}
		return ids
	}),
	64: func(w *world, p *patched) {
		asked := 0
		reidentify(func(ids []string, req *driver.GetVolumeIDsRequest) []string {
			if len(req.PVSpecs) != 3 {
				return ids
			}
			asked++
			return ids[:asked%2]
		})(w, p)
	},
	65: func(_ *world, p *patched) {
		p.migrate = func(context.Context, *driver.GenerateMachineClassForMigrationRequest) (migrateResp, error) {
			return &driver.GenerateMachineClassForMigrationResponse{}, nil
		}
	},
	67: redomain(func(domains []driver.FailureDomain) []driver.FailureDomain { return append(domains, domains[0]) }),
	68: func(w *world, p *patched) {
		asked := 0
		redomain(func(domains []driver.FailureDomain) []driver.FailureDomain {
			asked++
			return append(domains, driver.FailureDomain{Name: fmt.Sprintf("extra-%d", asked)})
		})(w, p)
	},
	70: func(_ *world, p *patched) {
		asked := 0
		p.place = func(_ context.Context, req *driver.PlaceMachineRequest) (placeResp, error) {
			if len(req.FailureDomain) > 256 {
				return nil, failing(codes.NotFound)
			}
			asked++
			spec, err := driver.WithField(req.MachineClass.ProviderSpec, "zone", fmt.Sprintf("%s-%d", req.FailureDomain, asked))
			return &driver.PlaceMachineResponse{ProviderSpec: spec}, err
		}
	},
	71: func(_ *world, p *patched) {
		next := p.place
		p.place = func(ctx context.Context, req *driver.PlaceMachineRequest) (placeResp, error) {
			if strings.Contains(string(req.MachineClass.ProviderSpec.Raw), `"zone"`) {
				return &driver.PlaceMachineResponse{ProviderSpec: req.MachineClass.ProviderSpec}, nil
			}
			return next(ctx, req)
		}
	},
	72: func(_ *world, p *patched) {
		p.place = func(_ context.Context, req *driver.PlaceMachineRequest) (placeResp, error) {
			spec, err := driver.WithField(req.MachineClass.ProviderSpec, "zone", req.FailureDomain)
			return &driver.PlaceMachineResponse{ProviderSpec: spec}, err
		}
	},
	74: func(w *world, p *patched) {
		asked := 0
		relocate(func(location string, _ *driver.LocateMachineRequest) string {
			asked++
			return fmt.Sprintf("%s-%d", location, asked)
		})(w, p)
	},
	75: func(_ *world, p *patched) {
		next := p.locate
		p.locate = func(ctx context.Context, req *driver.LocateMachineRequest) (locateResp, error) {
			other := *req
			other.Machine = req.Machine.DeepCopy()
			other.Machine.Annotations = nil
			return next(ctx, &other)
		}
	},
	76: relocate(func(location string, req *driver.LocateMachineRequest) string {
		if begun := driver.Location(req.Machine); begun != "" {
			return begun
		}
		return location
	}),
	77: relocate(func(string, *driver.LocateMachineRequest) string { return "" }),
	78: relocate(func(location string, _ *driver.LocateMachineRequest) string { return location + "/" + token }),
}
