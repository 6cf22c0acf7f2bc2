package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
	"github.com/millwright-dev/millwright/driver/status"
)

// SetZones replaces the zones of the cloud. VMs in other zones stay. A new cloud has no
// zones. A zone has to be a valid value of a label.
func (c *Cloud) SetZones(names ...string) error {
	for _, name := range names {
		if !spec.IsZone(name) {
			return fmt.Errorf("%q cannot be a zone", name)
		}
	}
	return c.locked(func() error { return c.store.setZones(slices.Compact(slices.Sorted(slices.Values(names)))) })
}

// Zones returns the zones of the cloud, sorted.
func (c *Cloud) Zones() ([]string, error) {
	var zones []string
	err := c.locked(func() (err error) {
		zones, err = c.store.zones()
		return err
	})
	return zones, err
}

// checkZone returns an error unless a VM can be created in a zone. The store is locked.
func (c *Cloud) checkZone(zone string) error {
	if zone == "" {
		return nil
	}
	zones, err := c.store.zones()
	if err != nil || slices.Contains(zones, zone) {
		return err
	}
	return status.Error(codes.FailedPrecondition, fmt.Sprintf("there is no zone %q (zones: %s)", zone, strings.Join(zones, ", ")))
}

// ListFailureDomains implements driver.FailureDomains: the zones of the cloud.
func (d *Driver) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	parsed, err := spec.Parse(req.MachineClass)
	if err != nil {
		return nil, d.answer(ListFailureDomains, "", err)
	}
	resp := &driver.ListFailureDomainsResponse{}
	err = d.do(ctx, call{method: ListFailureDomains, spec: parsed}, func() error {
		zones, err := d.cloud.Zones()
		for _, zone := range zones {
			resp.FailureDomains = append(resp.FailureDomains, driver.FailureDomain{Name: zone})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// PlaceMachine implements driver.FailureDomains: it sets the field zone.
func (d *Driver) PlaceMachine(req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	if !spec.IsZone(req.FailureDomain) {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("%q cannot be a zone", req.FailureDomain))
	}
	raw, err := driver.WithField(req.MachineClass.ProviderSpec, "zone", req.FailureDomain)
	if err != nil {
		return nil, err
	}
	return &driver.PlaceMachineResponse{ProviderSpec: raw}, nil
}
