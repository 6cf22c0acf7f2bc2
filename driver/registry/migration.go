package registry

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Migrator returns the driver that migrates classes of an older kind, such as AWSMachineClass, and the name under
// which it is registered. If a provider is given, it is the driver for that provider. Otherwise it is the only
// driver that lists the kind (see driver.KindMigrator), or else the only driver, unless others may register. The
// driver may still return Unimplemented.
//
// The error has the code Unavailable if such a driver may register later, FailedPrecondition if several drivers
// list the kind, and Unimplemented otherwise.
func (r *Registry) Migrator(kind, provider string) (name string, d driver.Driver, err error) {
	if provider != "" {
		name, d = r.Serving(provider)
		if d == nil {
			return "", nil, r.noMigrator(fmt.Sprintf("the class is for driver %q, but this manager has %s", provider, r))
		}
		return name, d, nil
	}
	all := r.entries()
	own := slices.DeleteFunc(slices.Clone(all), func(e *entry) bool {
		return !slices.Contains(driver.MigratedKinds(e.driver), kind)
	})
	switch {
	case len(own) == 1:
		return own[0].name, own[0].driver, nil
	case len(own) > 1:
		return "", nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("%s each migrate the kind %s", listed(own), kind))
	case len(all) == 1 && !r.options.MayGrow:
		return all[0].name, all[0].driver, nil
	}
	return "", nil, r.noMigrator(fmt.Sprintf("no driver migrates the kind %s; this manager has %s", kind, r))
}

// noMigrator returns the error for a kind that no driver migrates. It is Unavailable if drivers may register later.
func (r *Registry) noMigrator(why string) error {
	if r.options.MayGrow {
		return status.Error(codes.Unavailable, why)
	}
	return status.Error(codes.Unimplemented, why)
}

// listed returns the names of drivers.
func listed(entries []*entry) string {
	var names []string
	for _, e := range entries {
		names = append(names, strconv.Quote(e.name))
	}
	return quoted(names)
}
