package instance

import "github.com/millwright-dev/millwright/internal/lifecycle/timeouts"

// Method is the driver's method that an answer stems from.
type Method = timeouts.Method

// The methods of a driver, and what precedes a creation.
const (
	MethodCreate     = timeouts.Create
	MethodInitialize = timeouts.Initialize
	MethodStatus     = timeouts.Status
	MethodDelete     = timeouts.Delete
	MethodPrepare    = timeouts.Prepare
)
