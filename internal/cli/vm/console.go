package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gorilla/websocket"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/dryrun"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
)

// escape disconnects a console on a terminal: Ctrl-], as in telnet and virsh.
const escape = 0x1d

// connected is the first line of a console on a terminal.
const connected = "Connected. Ctrl-] disconnects, and so does ~. at the beginning of a line.\r\n"

// consolePace is the interval at which a console that cannot be opened yet is tried.
const consolePace = time.Second

func newConsole() *cobra.Command {
	replay, raw, timeout := false, false, time.Duration(0)
	cmd := newCall(&cobra.Command{
		Use:   "console NAME",
		Short: "Connect to the serial console of a virtual machine",
		Long: `Connect to the serial console of a virtual machine.

Several users can be connected at the same time: all of them see all output and can type. On
a terminal, Ctrl-] disconnects; the guest keeps running. On keyboards without Ctrl-], type ~. at the
beginning of a line, as in ssh; ~~ there sends one ~. What the guest writes to a terminal
is limited to text, colors and cursor movements; --raw lifts that limit. A file or a pipe
gets every byte.`,
		Example: `  millwright vm console worker-1
  millwright vm console worker-1 --replay=false
  millwright vm console worker-1 --timeout 2m`,
	}, func(cmd *cobra.Command, vm client.ObjectKey, calls *remote) error {
		out, done := guestOutput(cmd.OutOrStdout(), raw)
		defer done()
		conn, err := openWithin(cmd.Context(), timeout, func(ctx context.Context) (*websocket.Conn, error) {
			return calls.console(ctx, vm, replay)
		})
		if err != nil {
			return fmt.Errorf("cannot connect to the console of virtual machine %s: %w", vm.Name, err)
		}
		defer conn.Close()
		return console(cmd.Context(), conn, os.Stdin, out, terminal.Raw(cmd.ErrOrStderr()))
	})
	cmd.Flags().BoolVar(&replay, "replay", true, "print the last output first, up to 64 KiB")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to try to connect, also while the virtual machine is not running; 0 tries once")
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
		fmt.Fprint(messages, connected)
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

// openWithin opens a console. With a timeout, it retries while the VM or its VM controller is not available, and gives up
// when the timeout expires.
func openWithin(ctx context.Context, timeout time.Duration, open func(context.Context) (*websocket.Conn, error)) (conn *websocket.Conn, err error) {
	if timeout == 0 {
		return open(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	expired := wait.PollUntilContextCancel(ctx, consolePace, true, func(ctx context.Context) (bool, error) {
		opened, failure := open(ctx)
		if ctx.Err() == nil || err == nil {
			conn, err = opened, failure // not that the timeout has expired, if there is another reason
		}
		if apierrors.IsConflict(failure) || apierrors.IsServiceUnavailable(failure) {
			return false, nil
		}
		return true, failure
	})
	if errors.Is(expired, context.DeadlineExceeded) && err != nil {
		return nil, fmt.Errorf("no connection within %s: %w", timeout, err)
	}
	return conn, err
}

// typed sends input until its end, and reports whether the user disconnected. The guest may still print after
// the end of the input.
func typed(conn *websocket.Conn, in io.Reader, terminal bool) (leave bool) {
	buffer, keys := make([]byte, 4096), escapes{lineStart: true}
	for {
		n, err := in.Read(buffer)
		piece := buffer[:n]
		if terminal {
			piece, leave = keys.filter(piece)
		}
		if len(piece) > 0 && conn.WriteMessage(websocket.BinaryMessage, piece) != nil {
			return leave // the reader reports errors
		}
		if leave || err != nil {
			return leave
		}
	}
}

// escapes finds what disconnects a console in the input of a terminal.
type escapes struct {
	// lineStart is true if the next byte begins a line.
	lineStart bool
	// tilde is true if a line has begun with ~, which is not sent yet.
	tilde bool
}

// filter returns the input to send, and whether the user disconnected.
func (e *escapes) filter(input []byte) (send []byte, leave bool) {
	for _, key := range input {
		begun := e.tilde
		e.tilde = false
		switch {
		case key == escape, begun && key == '.':
			return send, true
		case begun && key != '~':
			send = append(send, '~')
		case !begun && key == '~' && e.lineStart:
			e.tilde = true
			continue
		}
		send = append(send, key)
		e.lineStart = key == '\r' || key == '\n'
	}
	return send, false
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
