package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gorilla/websocket"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
)

// escape disconnects a console on a terminal: Ctrl-], as in telnet and virsh.
const escape = 0x1d

func newConsole() *cobra.Command {
	replay, raw := false, false
	cmd := newCall(&cobra.Command{
		Use:   "console NAME",
		Short: "Connect to the serial console of a virtual machine",
		Long: `Connect to the serial console of a virtual machine.

Several users can be connected at the same time: all of them see all output and can type. On
a terminal, Ctrl-] disconnects; the guest keeps running. What the guest writes to a terminal
is limited to text, colors and cursor movements; --raw lifts that limit. A file or a pipe
gets every byte.`,
		Example: `  millwright vm console worker-1
  millwright vm console worker-1 --replay=false`,
	}, func(cmd *cobra.Command, vm client.ObjectKey, calls *remote) error {
		out, done := guestOutput(cmd.OutOrStdout(), raw)
		defer done()
		conn, err := calls.console(cmd.Context(), vm, replay)
		if err != nil {
			return fmt.Errorf("cannot connect to the console of virtual machine %s: %w", vm.Name, err)
		}
		defer conn.Close()
		return console(cmd.Context(), conn, os.Stdin, out, terminal.Raw(cmd.ErrOrStderr()))
	})
	cmd.Flags().BoolVar(&replay, "replay", true, "print the last output first, up to 64 KiB")
	addRaw(cmd, &raw)
	return cmd
}

func newLogs() *cobra.Command {
	follow, raw := false, false
	cmd := newCall(&cobra.Command{
		Use:     "logs NAME",
		Aliases: []string{"log"},
		Short:   "Print the last output of a virtual machine's serial console",
		Long: `Print the last output of a virtual machine's serial console, up to 64 KiB.

It needs fewer permissions than the console: nothing can be typed.`,
		Example: `  millwright vm logs worker-1
  millwright vm logs worker-1 --follow`,
	}, func(cmd *cobra.Command, vm client.ObjectKey, calls *remote) error {
		out, done := guestOutput(cmd.OutOrStdout(), raw)
		err := calls.log(cmd.Context(), vm, follow, out)
		done()
		if err != nil {
			return fmt.Errorf("cannot read the console output of virtual machine %s: %w", vm.Name, err)
		}
		if follow && cmd.Context().Err() == nil {
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), logEnd, vm.Name)
		}
		return err
	})
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new output until the virtual machine terminates or leaves its host")
	addRaw(cmd, &raw)
	return cmd
}

// logEnd is printed after the output of a followed VM.
const logEnd = "The output ended because virtual machine %s has terminated or left its host. If it still exists, run the command again.\n"

func addRaw(cmd *cobra.Command, raw *bool) {
	cmd.Flags().BoolVar(raw, "raw", false, "do not restrict what the guest can do to this terminal, such as typing for you, setting the clipboard, or clearing the scrollback")
}

// guestOutput returns the writer for guest output. done restores the terminal.
func guestOutput(to io.Writer, raw bool) (out io.Writer, done func()) {
	to = terminal.Raw(to)
	file, is := to.(*os.File)
	if raw || !is || !term.IsTerminal(int(file.Fd())) {
		return to, func() {}
	}
	guest := terminal.NewGuest(to)
	return guest, func() { _ = guest.Close() } // errors cannot be shown
}

func newReset() *cobra.Command {
	dry := &dryrun.Mode{}
	cmd := newCall(&cobra.Command{
		Use:   "reset NAME",
		Short: "Hard-reset a virtual machine",
		Long: `Hard-reset a virtual machine, like the reset button of a computer. The guest does not shut down, so
it may lose data that it has not written to its disk.`,
		Example: `  millwright vm reset worker-1
  millwright vm reset worker-1 --dry-run=server`,
	}, func(cmd *cobra.Command, vm client.ObjectKey, calls *remote) error {
		calls.dry = dry
		if err := calls.reset(cmd.Context(), vm); err != nil {
			return fmt.Errorf("cannot reset virtual machine %s: %w", vm.Name, err)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s was reset%s.\n", vm.Name, dry.Suffix())
		return err
	})
	dry.Add(cmd)
	return cmd
}

// newCall returns a command that calls a subresource of a VM.
func newCall(cmd *cobra.Command, run func(*cobra.Command, client.ObjectKey, *remote) error) *cobra.Command {
	flags := &kubeconfig.Flags{}
	cmd.Args = args.OneName("virtual machine")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, calls, err := connect(flags)
		if err != nil {
			return err
		}
		if err := run(cmd, client.ObjectKey{Namespace: flags.Namespace, Name: args[0]}, calls); err != nil {
			return flags.ExplainStopped(err)
		}
		return nil
	}
	cmd.ValidArgsFunction = flags.CompleteName(vmKind)
	flags.Add(cmd, virtualMachines)
	return cmd
}

// console connects in and out, which may be a terminal, to a serial port until either is closed.
func console(ctx context.Context, conn *websocket.Conn, in *os.File, out, messages io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	onTerminal := term.IsTerminal(int(in.Fd()))
	if onTerminal {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return fmt.Errorf("cannot set up the terminal: %w", err)
		}
		defer term.Restore(int(in.Fd()), before) // errors are ignored at exit
		fmt.Fprint(messages, "Connected. Ctrl-] disconnects.\r\n")
	}
	go func() {
		if typed(conn, in, onTerminal) {
			cancel() // the user disconnected
		}
	}()
	for {
		_, piece, err := conn.ReadMessage()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return consoleEnd(err)
		}
		if _, err := out.Write(piece); err != nil {
			return fmt.Errorf("cannot write the guest's output: %w", err)
		}
	}
}

// typed sends input until its end, and reports whether the user disconnected. The guest may still print after
// the end of the input.
func typed(conn *websocket.Conn, in io.Reader, terminal bool) (leave bool) {
	buffer := make([]byte, 4096)
	for {
		n, err := in.Read(buffer)
		piece := buffer[:n]
		if terminal {
			piece, _, leave = bytes.Cut(piece, []byte{escape})
		}
		if len(piece) > 0 && conn.WriteMessage(websocket.BinaryMessage, piece) != nil {
			return leave // the reader reports errors
		}
		if leave || err != nil {
			return leave
		}
	}
}

// consoleEnd explains the error that closed a console.
func consoleEnd(err error) error {
	closed, is := errors.AsType[*websocket.CloseError](err)
	if !is {
		return fmt.Errorf("the console was closed: %w", err)
	}
	switch closed.Code {
	case websocket.CloseNormalClosure:
		return nil
	case websocket.CloseGoingAway:
		return errors.New("the virtual machine has terminated or left its host; connect again to continue")
	case websocket.CloseTryAgainLater:
		return errors.New("the guest prints faster than its output can be shown; connect again to continue")
	case websocket.CloseAbnormalClosure:
		return errors.New("the connection to the console was lost; connect again to continue")
	}
	return fmt.Errorf("the console was closed: %s", closed.Text)
}
