package instance

import (
	"context"
	"time"
)

// Claimant is an object that names an instance as its own. Objects of two APIs may name the
// same one: the driver need not tell them apart, and users write IDs by hand.
type Claimant struct {
	// Name says of what kind the object is, and which.
	Name string
	// Certain tells that the object got the instance, rather than that its ID was written
	// there.
	Certain bool
	// Deleting tells that the object is being deleted.
	Deleting bool
	// Since is when the object was made.
	Since time.Time
}

// Claimants finds the objects of another API that name an instance, by its provider ID.
type Claimants func(ctx context.Context, namespace, providerID string) ([]Claimant, error)

// Before reports whether the instance is rather this object's than the other's: that of the
// one which is certain, failing that of the one which was there first.
func (c Claimant) Before(other Claimant) bool {
	switch {
	case c.Certain != other.Certain:
		return c.Certain
	case !c.Since.Equal(other.Since):
		return c.Since.Before(other.Since)
	}
	return c.Name < other.Name
}
