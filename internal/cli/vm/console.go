package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/folder"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/confine"
	"github.com/millwright-dev/millwright/internal/local/hostrunner"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// escape ends a console on a terminal: Ctrl-], as in telnet and virsh.
const escape = 0x1d

func newConsole() *cobra.Command {
	return newSocketCommand(&cobra.Command{
		Use:   "console NAME",
		Short: "Connect to the serial console of a virtual machine on this machine",
		Long: `Connect to the serial console of a virtual machine on this machine.

Recent output is printed first. Several users can be connected at the same time: all of
them see all output, and can type. On a terminal, Ctrl-] disconnects; the guest keeps
running.`,
	}, func(cmd *cobra.Command, _ string, vm vmpb.OOBManagementClient) error {
		return console(cmd.Context(), vm, os.Stdin, terminal.Raw(cmd.OutOrStdout()), terminal.Raw(cmd.ErrOrStderr()))
	})
}

func newReset() *cobra.Command {
	return newSocketCommand(&cobra.Command{
		Use:   "reset NAME",
		Short: "Hard-reset a virtual machine on this machine",
	}, func(cmd *cobra.Command, name string, vm vmpb.OOBManagementClient) error {
		if _, err := vm.Reset(cmd.Context(), &vmpb.ResetRequest{}); err != nil {
			return fmt.Errorf("resetting %s: %s", name, status.Convert(err).Message())
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s was reset.\n", name)
		return err
	})
}

// newSocketCommand returns a command that calls the hypervisor of a VM.
func newSocketCommand(cmd *cobra.Command, run func(*cobra.Command, string, vmpb.OOBManagementClient) error) *cobra.Command {
	flags := &kubeconfig.Flags{}
	cmd.Args = args.OneName("virtual machine")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		conn, err := dial(cmd.Context(), flags, args[0])
		if err != nil {
			return err
		}
		defer conn.Close() // at the end of the command
		return run(cmd, args[0], vmpb.NewOOBManagementClient(conn))
	}
	addCluster(cmd, flags)
	return cmd
}

// dial connects to the socket of a VM's hypervisor.
func dial(ctx context.Context, flags *kubeconfig.Flags, name string) (*grpc.ClientConn, error) {
	c, err := flags.Client()
	if err != nil {
		return nil, err
	}
	vm := &vmv1alpha1.VirtualMachine{}
	err = c.Get(ctx, client.ObjectKey{Namespace: flags.Namespace, Name: name}, vm)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf(`there is no virtual machine %s in namespace %s; "millwright vm list" shows all`, name, flags.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for virtual machine %s: %w", name, err)
	}
	if vm.Status.ActivePodUID == "" || vm.Status.NodeName == "" {
		return nil, fmt.Errorf("virtual machine %s does not run (%s)", name, State(vm))
	}
	// Who may write the status must not choose the socket.
	host, err := confine.Element(vm.Status.NodeName)
	if err != nil {
		return nil, fmt.Errorf("virtual machine %s runs on %q, which is no name of a host", name, vm.Status.NodeName)
	}
	socket := hostrunner.ContainerPath(folder.HostDir(flags.Folder(), host), vm.Status.ActivePodUID, vmpb.SocketPath)
	conn, err := service.DialSocket(socket)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("virtual machine %s runs on %s, which is no host of %s: its console can be reached on its own machine only", name, vm.Status.NodeName, flags.Folder())
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to the hypervisor of %s: %w", name, err)
	}
	return conn, nil
}

// console connects in and out, which may be a terminal, to a serial port until either ends.
func console(ctx context.Context, vm vmpb.OOBManagementClient, in *os.File, out, messages io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := vm.Console(ctx)
	if err != nil {
		return consoleEnd(err)
	}
	onTerminal := term.IsTerminal(int(in.Fd()))
	if onTerminal {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return fmt.Errorf("setting up the terminal: %w", err)
		}
		defer term.Restore(int(in.Fd()), before) // nothing is left to do
		fmt.Fprint(messages, "Connected. Ctrl-] ends the connection.\r\n")
	}
	go func() {
		if typed(stream, in, onTerminal) {
			cancel() // the user left
		}
	}()
	for {
		piece, err := stream.Recv()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return consoleEnd(err)
		}
		if _, err := out.Write(piece.GetData()); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
}

// typed sends input until it ends, and reports whether the user asked to leave. After the end of
// the input the guest may still print.
func typed(stream grpc.BidiStreamingClient[vmpb.ConsoleIO, vmpb.ConsoleIO], in io.Reader, terminal bool) (leave bool) {
	defer stream.CloseSend() // the receiving side reports errors
	buffer := make([]byte, 4096)
	for {
		n, err := in.Read(buffer)
		piece := buffer[:n]
		if terminal {
			piece, _, leave = bytes.Cut(piece, []byte{escape})
		}
		if len(piece) > 0 && stream.Send(&vmpb.ConsoleIO{Data: bytes.Clone(piece)}) != nil {
			return leave
		}
		if leave || err != nil {
			return leave
		}
	}
}

// consoleEnd explains the error that ended a console.
func consoleEnd(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case status.Code(err) == codes.Unavailable:
		return errors.New("the virtual machine has ended or left this host")
	case status.Code(err) == codes.ResourceExhausted:
		return errors.New("the console says more than could be shown: connect again to go on")
	}
	return fmt.Errorf("the console ended: %s", status.Convert(err).Message())
}
