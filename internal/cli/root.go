// Package cli runs the commands of millwright. Only this package and those below it read flags and the
// environment.
package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/autoscaler"
	"github.com/millwright-dev/millwright/internal/cli/cloudcontroller"
	"github.com/millwright-dev/millwright/internal/cli/conformance"
	"github.com/millwright-dev/millwright/internal/cli/drivers"
	"github.com/millwright-dev/millwright/internal/cli/instance"
	"github.com/millwright-dev/millwright/internal/cli/loadbalancer"
	"github.com/millwright-dev/millwright/internal/cli/machine"
	"github.com/millwright-dev/millwright/internal/cli/manager"
	"github.com/millwright-dev/millwright/internal/cli/program"
	"github.com/millwright-dev/millwright/internal/cli/rollout"
	"github.com/millwright-dev/millwright/internal/cli/ui"
	"github.com/millwright-dev/millwright/internal/cli/vm"
	"github.com/millwright-dev/millwright/internal/local/archives"
)

// Program is the input and output of a run. If its name is that of one of MCM's programs, that program's
// command runs; otherwise, the command that Args begin with.
type Program = program.Program

// Main runs the command that the arguments select, and returns the exit status: 0 for success, 1 for a failure,
// 2 for invalid arguments. SIGINT and SIGTERM stop a command gracefully; a second signal terminates it
// immediately.
func Main(p Program) int {
	ctx, stop := program.Signals()
	defer stop()
	return p.Run(ctx, newRootFor(p))
}

// newRootFor returns the command for the name of the program.
func newRootFor(p Program) *cobra.Command {
	for _, cmd := range append(managerCommands()[1:], newManageVM()) { // MCM's
		if filepath.Base(p.Name) == cmd.Name() {
			return program.Complete(cmd, program.VersionLine("millwright", p.Version))
		}
	}
	release := archives.Set{Version: p.Version, Sums: must(archives.ParseSums(p.Archives))}
	if filepath.Base(p.Name) == Plugin {
		return program.Rename(newRoot(p.Version, release), "kubectl millwright")
	}
	return newRoot(p.Version, release)
}

// Plugin is the name of the program as a kubectl plugin, which runs for "kubectl millwright".
const Plugin = "kubectl-millwright"

// Groups of the commands in the help.
var (
	groupLocal    = &cobra.Group{ID: "local", Title: "Local cluster:"}
	groupMachines = &cobra.Group{ID: "machines", Title: "Machines:"}
	groupVMs      = &cobra.Group{ID: "vms", Title: "Virtual machines:"}
	groupRun      = &cobra.Group{ID: "run", Title: "Run in a cluster:"}
	groupDrivers  = &cobra.Group{ID: "drivers", Title: "Drivers:"}
	groupOther    = &cobra.Group{ID: "other", Title: "Other commands:"}
)

// Root returns the command "millwright".
func Root(version string) *cobra.Command { return newRoot(version, archives.Set{}) }

func newRoot(version string, release archives.Set) *cobra.Command {
	root := args.Group(&cobra.Command{
		Use:   "millwright",
		Short: "Manage the machines of Kubernetes clusters",
		Long: `Manage the machines of Kubernetes clusters.

Exit status: 0 for success; 1 for a failure, or if what a command waits for or looks for did not
happen or does not exist; 2 for invalid arguments.`,
		Example: `  millwright up
  millwright vm list
  millwright explain machine pool-a-x7k2p`,
	})
	add := func(group *cobra.Group, commands ...*cobra.Command) {
		root.AddGroup(group)
		for _, cmd := range commands {
			cmd.GroupID = group.ID
		}
		root.AddCommand(commands...)
	}
	add(groupLocal, localCommands(release)...)
	add(groupMachines, machine.NewExplain(), machine.New(must(instance.Deprecated(drivers.Kinds))...), rollout.New(), ui.New(version))
	add(groupVMs, append([]*cobra.Command{vm.New()}, hypervisorCommands()...)...)
	add(groupRun, append(managerCommands(), must(manager.NewFleet(drivers.Kinds)), newVMController(), autoscaler.New(), cloudcontroller.New(), loadbalancer.New())...)
	add(groupDrivers, must(instance.New(drivers.Kinds)), newManageVM(), newConformance())
	add(groupOther, newVersionCommand(version))
	root.SetHelpCommand(newHelpCommand())
	root.SetHelpCommandGroupID(groupOther.ID)
	root.SetCompletionCommandGroupID(groupOther.ID)
	return program.Complete(root, program.VersionLine("millwright", version))
}

// managerCommands are the commands that run controllers. Each has its own flags.
func managerCommands() []*cobra.Command {
	own := func() manager.DriverFlags { return manager.DriverFlags{Kinds: drivers.Kinds()} }
	return []*cobra.Command{
		must(manager.New(own())), must(manager.NewMachineController(own())), must(manager.NewMachineControllerManager()),
	}
}

func newManageVM() *cobra.Command { return must(instance.NewManageVM(drivers.Kinds())) }

func newConformance() *cobra.Command {
	simulated := &drivers.SimOptions{}
	return must(conformance.New(conformance.Program{Kinds: drivers.With(simulated), Prepare: simulated.Temporary}))
}

// must panics if two built-in drivers have the same flags, or the linker has set invalid checksums.
func must[V any](value V, err error) V {
	if err != nil {
		panic(err)
	}
	return value
}

// newHelpCommand is like cobra's, but rejects unknown commands.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about a command",
		Example: `  millwright help vm list`,
		RunE: func(cmd *cobra.Command, names []string) error {
			of, rest, err := cmd.Root().Find(names)
			if err != nil {
				return args.Wrong(err)
			}
			if len(rest) > 0 {
				if err := of.ValidateArgs(rest); err != nil {
					return err
				}
			}
			of.InitDefaultHelpFlag() // so that its help lists it
			return of.Help()
		},
	}
}
