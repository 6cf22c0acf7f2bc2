package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver"
)

// Kind is a kind of driver that a program contains.
type Kind struct {
	// Name is the provider of the classes that the driver serves, and its value for --driver.
	Name string
	// Summary is a phrase that describes what the driver creates, for the help of --driver. Optional.
	Summary string
	// Flags adds the driver's own flags. Their names should start with that of the driver. If nil, the driver has
	// no flags.
	Flags func(*pflag.FlagSet)
	// Open returns the driver after the flags were parsed. It should return quickly; a provider that does not
	// respond is not an error at this point. Required.
	Open Opener
}

// Opener returns a new driver. If the driver implements [Starter], it is started. If it implements [io.Closer], it
// is closed after the last call when the program exits.
type Opener func(ctx context.Context, env Environment) (driver.Driver, error)

// Environment contains the values that a program passes to its drivers.
type Environment struct {
	// Control is the cluster where the Machines are stored. If nil, there is none. It must not be changed.
	Control *rest.Config
	// Target is the cluster that nodes join. If nil, there is none. It must not be changed.
	Target *rest.Config
	// Installation is the name with which a driver may distinguish its VMs from those of other installations.
	// Optional.
	Installation string
}

// Starter is implemented by drivers that run in the background.
type Starter interface {
	// Start is called once, when the process has become the leader. It returns when the context is done. If it
	// returns an error, the process exits.
	Start(ctx context.Context) error
}

// Close closes a driver that implements [io.Closer], after the last call. It logs an error.
func Close(d driver.Driver, log logr.Logger) {
	closer, ok := driver.As[io.Closer](d)
	if !ok {
		return
	}
	if err := closer.Close(); err != nil {
		log.Error(err, "Cannot close the driver")
	}
}

// Kinds are the kinds of driver that a program contains.
type Kinds []Kind

// Check returns an error if two kinds have the same name, or if a kind has an invalid name or no Opener.
func (k Kinds) Check() error {
	var problems []error
	seen := map[string]bool{}
	for _, kind := range k {
		key := strings.ToLower(kind.Name)
		switch err := CheckName(kind.Name); {
		case err != nil:
			problems = append(problems, err)
		case kind.Open == nil:
			problems = append(problems, fmt.Errorf("driver %q has no Open function", kind.Name))
		case seen[key]:
			problems = append(problems, fmt.Errorf("driver %q: %w", kind.Name, ErrTaken))
		}
		seen[key] = true
	}
	return errors.Join(problems...)
}

// Find returns the kind with the given name.
func (k Kinds) Find(name string) (Kind, bool) {
	for _, kind := range k {
		if strings.EqualFold(kind.Name, name) {
			return kind, true
		}
	}
	return Kind{}, false
}

// Names returns the names of the kinds, in order, separated by commas.
func (k Kinds) Names() string {
	names := make([]string, 0, len(k))
	for _, kind := range k {
		names = append(names, kind.Name)
	}
	return strings.Join(names, ", ")
}

// AddFlags adds the flags of all kinds. The error names a flag that is already defined.
func (k Kinds) AddFlags(flags *pflag.FlagSet) error {
	var problems []error
	for _, kind := range k {
		if kind.Flags == nil {
			continue
		}
		own := pflag.NewFlagSet(kind.Name, pflag.ContinueOnError)
		own.SetNormalizeFunc(flags.GetNormalizeFunc())
		kind.Flags(own)
		own.VisitAll(func(flag *pflag.Flag) {
			if flags.Lookup(flag.Name) != nil {
				problems = append(problems, fmt.Errorf("driver %q: flag --%s is already defined by the manager or another driver; choose another name", kind.Name, flag.Name))
			}
		})
		flags.AddFlagSet(own)
	}
	return errors.Join(problems...)
}
