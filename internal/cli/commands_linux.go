package cli

import (
	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/cli/cluster"
	"github.com/millwright-dev/millwright/internal/cli/vm"
	"github.com/millwright-dev/millwright/internal/cli/vmcontroller"
	"github.com/millwright-dev/millwright/internal/local/archives"
)

// localCommands are the commands of local clusters.
func localCommands(release archives.Set) []*cobra.Command {
	return []*cobra.Command{cluster.NewUp(release), cluster.NewDown(), cluster.NewStatus(), cluster.NewDemo(release), cluster.NewHostrunner()}
}

// hypervisorCommands are the commands that Pods of virtual machines run.
func hypervisorCommands() []*cobra.Command {
	return []*cobra.Command{vm.NewHypervisor(), vm.NewDiskServer()}
}

func newVMController() *cobra.Command { return vmcontroller.New() }
