//go:build linux

package vm

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/storage/program"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// NewDiskServer returns the command of the Pods that serve the disks of virtual machines.
func NewDiskServer() *cobra.Command {
	return &cobra.Command{
		Use:   "disk-server",
		Short: "Serve the disks of the virtual machine that the environment describes",
		Long: `Prepare the disks of the virtual machine that the environment variable ` + vmpb.EnvSpec + `
describes, and serve them to its hypervisors.

The VM controller creates Pods that run this command. It is not meant to be run by
hand.`,
		Hidden: true,
		Args:   args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDiskServer(cmd.Context(), os.Getenv, cmd.ErrOrStderr())
		},
	}
}

// runDiskServer serves the disks of a VM, and writes why it exits to the termination message.
func runDiskServer(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	end := vmpb.Termination{Reason: vmpb.EndInvalidSpec}
	config, err := diskServerConfig(getenv, log)
	if err == nil {
		end = program.Run(ctx, config)
	} else {
		end.Message = err.Error()
	}
	return leave("disk server", getenv, log, end)
}

// diskServerConfig reads the environment.
func diskServerConfig(getenv func(string) string, log *slog.Logger) (program.Config, error) {
	spec, err := vmspec.Parse(getenv(vmpb.EnvSpec))
	if err != nil {
		return program.Config{}, fmt.Errorf("%s: %w", vmpb.EnvSpec, err)
	}
	log = log.With("pod", spec.GetPodName())
	addresses := map[string]string{}
	for variable, port := range map[string]int{vmpb.EnvDisksControl: vmpb.DisksControlPort, vmpb.EnvDisksSessions: vmpb.DisksSessionsPort} {
		addresses[variable] = cmp.Or(getenv(variable), net.JoinHostPort("::", strconv.Itoa(port)))
		if _, err := net.ResolveTCPAddr("tcp", addresses[variable]); err != nil {
			return program.Config{}, fmt.Errorf("%s: %w", variable, err)
		}
	}
	files, err := imagesFrom(getenv)
	if err != nil {
		return program.Config{}, err
	}
	credentials, err := credentialsFor(spec, getenv, log)
	if err != nil {
		return program.Config{}, err
	}
	siblings := identity.Siblings{Credentials: credentials, Namespace: spec.GetNamespace(), VM: spec.GetName()}
	return program.Config{
		Spec: spec, Paths: hypervisor.PathsFor(spec, getenv(vmpb.EnvRoot)), WriteDisk: files.WriteDisk,
		Control: addresses[vmpb.EnvDisksControl], Sessions: addresses[vmpb.EnvDisksSessions],
		Options: credentials.ServerOptions(identity.Only(identity.Peer.IsController), connlimit.Credentials),
		Accept:  siblings.AcceptAny,
		Connect: func(target string) (*grpc.ClientConn, error) {
			return credentials.Dial(target, identity.Controller(), controller.DialOptions()...)
		},
		Follow: credentials.FollowAuthorities,
		Log:    log,
	}, nil
}
