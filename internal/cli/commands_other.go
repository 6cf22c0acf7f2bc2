//go:build !linux

package cli

import (
	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/internal/local/archives"
)

// localCommands are the commands of local clusters.
func localCommands(archives.Set) []*cobra.Command {
	return []*cobra.Command{
		onlyOnLinux("up", "Run a local cluster whose nodes are virtual machines"),
		onlyOnLinux("down", "Stop a local cluster, or processes that remain of one"),
		onlyOnLinux("status", "Show the status of a local cluster"),
		onlyOnLinux("demo", "Run a local cluster and show how machines become nodes"),
	}
}

// hypervisorCommands returns none: only Pods run them.
func hypervisorCommands() []*cobra.Command { return nil }

func newVMController() *cobra.Command {
	return onlyOnLinux("vm-controller", "Run the controller of VirtualMachines in a cluster")
}
