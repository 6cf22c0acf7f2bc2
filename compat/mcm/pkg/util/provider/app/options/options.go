// Package options contains the flags of a machine controller, at MCM's import path.
package options

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	core "github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/provider"

	"github.com/gardener/machine-controller-manager/internal/recorder"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
)

// MCServer configures a machine controller. Its fields are the values of flags that providers read. They may also
// be set instead of the flags. The other flags have no fields.
type MCServer struct {
	// ControlKubeconfig is the kubeconfig of the cluster with the Machines, or "inClusterConfig". If empty,
	// TargetKubeconfig is used.
	ControlKubeconfig string
	// TargetKubeconfig is the kubeconfig of the cluster with the nodes, or "none". If empty, the in-cluster
	// configuration is used.
	TargetKubeconfig string
	// Namespace of the Machines.
	Namespace string
	// Address on which metrics are served.
	Address string

	// flags are all flags; given are the flags passed to AddFlags.
	flags, given *pflag.FlagSet
	run          *provider.Provider
	driver       driver.Driver
}

// NewMCServer returns the defaults of MCM.
func NewMCServer() *MCServer {
	s := &MCServer{flags: pflag.NewFlagSet("", pflag.ContinueOnError)}
	var also []provider.Option
	if recorder.Provider {
		also = append(also, provider.WithoutMetrics())
	}
	open := func(context.Context, provider.Environment) (core.Driver, error) { return s.driver, nil }
	s.run = provider.New(provider.AnyClass, open, also...)
	if err := s.run.AddFlags(s.flags); err != nil {
		panic(err) // a flag is defined twice
	}
	for name, field := range s.fields() {
		flag := s.flags.Lookup(name)
		*field = flag.DefValue
		flag.Value = bound{flag.Value, field}
	}
	return s
}

// fields returns the fields of flags that have one, by flag name.
func (s *MCServer) fields() map[string]*string {
	return map[string]*string{
		"control-kubeconfig": &s.ControlKubeconfig,
		"target-kubeconfig":  &s.TargetKubeconfig,
		"namespace":          &s.Namespace,
		"address":            &s.Address,
	}
}

// bound is the value of a flag that has a field.
type bound struct {
	pflag.Value

	field *string
}

// Set implements pflag.Value.
func (b bound) Set(text string) error {
	err := b.Value.Set(text)
	if err == nil {
		*b.field = text
	}
	return err
}

// commands are the commands of the program that need no cluster. Their own arguments follow them. "machine" is the
// former name of "instance".
var commands = []string{"conformance", "instance", "machine"}

// AddFlags adds the flags to fs, except those that fs already has. If the program was called with the command
// "conformance" or "instance", fs does not parse the arguments after it.
func (s *MCServer) AddFlags(fs *pflag.FlagSet) {
	s.given = fs
	if slices.ContainsFunc(os.Args[1:], func(arg string) bool { return slices.Contains(commands, arg) }) {
		fs.SetInterspersed(false)
	}
	s.flags.VisitAll(func(flag *pflag.Flag) {
		if fs.Lookup(flag.Name) == nil {
			fs.AddFlag(flag)
		}
	})
}

// Serve runs the machine controller with a driver until ctx is done, or the command in the arguments. Package app calls
// it once.
func (s *MCServer) Serve(ctx context.Context, d driver.Driver) error {
	s.driver = d
	if s.given != nil && slices.Contains(commands, s.given.Arg(0)) {
		return s.run.Run(ctx, s.given.Args()...)
	}
	if err := s.unparsed(); err != nil {
		return err
	}
	if err := s.settle(); err != nil {
		return err
	}
	return s.run.RunParsed(ctx, os.Stderr)
}

// unparsed returns an error if flags follow an argument at which fs stopped parsing, as in "--leader-elect true".
func (s *MCServer) unparsed() error {
	if s.given == nil {
		return nil
	}
	for _, arg := range s.given.Args() {
		if strings.HasPrefix(arg, "-") {
			return fmt.Errorf("flag %s follows the argument %q; write the values of boolean flags with an equals sign", arg, s.given.Arg(0))
		}
	}
	return nil
}

// settle sets the flags to the values of the fields, and of flags that existed before AddFlags. It also sets the
// verbosity of klog, which providers use for logging.
func (s *MCServer) settle() error {
	var problems []error
	set := func(flag *pflag.Flag, text string) {
		if text != flag.Value.String() {
			problems = append(problems, flag.Value.Set(text))
		}
	}
	for name, field := range s.fields() {
		set(s.flags.Lookup(name), *field)
	}
	if s.given != nil {
		s.flags.VisitAll(func(flag *pflag.Flag) {
			if other := s.given.Lookup(flag.Name); other != nil && other != flag && other.Changed {
				set(flag, other.Value.String())
			}
		})
	}
	var verbosity klog.Level
	return errors.Join(append(problems, verbosity.Set(s.flags.Lookup("v").Value.String()))...)
}
