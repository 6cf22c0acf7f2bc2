package registry

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Migrator returns the driver that migrates classes of an older kind, such as AWSMachineClass, and the
// name under which it is registered. That is the driver for the provider, if one is named; else the only one
// that lists the kind as its own (driver.KindMigrator); else the only driver, unless others may
// register. It may turn out to return Unimplemented.
//
// The error has the code Unavailable if a driver may register that does it, FailedPrecondition if
// several say that the kind is theirs, and Unimplemented otherwise.
func (r *Registry) Migrator(kind, provider string) (name string, d driver.Driver, err error) {
	if provider != "" {
		name, d = r.Serving(provider)
		if d == nil {
			return "", nil, r.nobody(fmt.Sprintf("it is for the driver %q, and this manager has %s", provider, r))
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
		return "", nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("%s say that the kind %s is their own", listed(own), kind))
	case len(all) == 1 && !r.options.MayGrow:
		return all[0].name, all[0].driver, nil
	}
	return "", nil, r.nobody(fmt.Sprintf("no driver says that the kind %s is its own, and this manager has %s", kind, r))
}

// nobody is the error for a kind that no driver migrates. It is Unavailable if others may be registered later.
func (r *Registry) nobody(why string) error {
	if r.options.MayGrow {
		return status.Error(codes.Unavailable, why)
	}
	return status.Error(codes.Unimplemented, why)
}

// listed names drivers.
func listed(entries []*entry) string {
	var names []string
	for _, e := range entries {
		names = append(names, strconv.Quote(e.name))
	}
	return quoted(names)
}
