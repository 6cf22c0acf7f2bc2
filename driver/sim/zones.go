package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// SetZones says which zones the cloud has from now on. VMs in a zone that is not among them
// stay. A new cloud has none.
func (c *Cloud) SetZones(names ...string) error {
	for _, name := range names {
		if !isZone(name) {
			return fmt.Errorf("%q cannot be a zone", name)
		}
	}
	return c.locked(func() error { return c.store.setZones(slices.Compact(slices.Sorted(slices.Values(names)))) })
}

// Zones returns the zones that the cloud has, sorted.
func (c *Cloud) Zones() ([]string, error) {
	var zones []string
	err := c.locked(func() (err error) {
		zones, err = c.store.zones()
		return err
	})
	return zones, err
}

// isZone reports whether a zone can have the name: nodes get it as a label.
func isZone(name string) bool { return name != "" && len(validation.IsValidLabelValue(name)) == 0 }

// checkZone reports whether a VM can be made in a zone. It is called with the store locked.
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
	s, err := parseSpec(req.MachineClass)
	if err != nil {
		return nil, d.answer(ListFailureDomains, "", err)
	}
	resp := &driver.ListFailureDomainsResponse{}
	err = d.do(ctx, call{method: ListFailureDomains, spec: s}, func() error {
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
	if !isZone(req.FailureDomain) {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("%q cannot be a zone", req.FailureDomain))
	}
	spec, err := driver.WithField(req.MachineClass.ProviderSpec, "zone", req.FailureDomain)
	if err != nil {
		return nil, err
	}
	return &driver.PlaceMachineResponse{ProviderSpec: spec}, nil
}
