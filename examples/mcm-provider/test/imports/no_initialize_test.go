//go:build mcm_no_initialize

package imports

import "github.com/gardener/machine-controller-manager/pkg/util/provider/driver"

// With the tag, drivers for older versions of MCM are drivers.
var _ driver.Driver = old{}
