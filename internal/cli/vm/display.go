package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"

	"github.com/gorilla/websocket"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// vncViewer is the command vnc.
type vncViewer struct {
	// Flags.
	proxyOnly bool
	port      uint16

	// dial connects to the display.
	dial func(ctx context.Context) (*websocket.Conn, error)
	// The address is written to out, and everything else to messages.
	out, messages io.Writer
}

func newVNC() *cobra.Command {
	v := &vncViewer{}
	cmd := newCall(&cobra.Command{
		Use:   "vnc NAME",
		Short: "Connect a VNC viewer to the display of a virtual machine",
		Long: `Connect a VNC viewer to the display of a virtual machine.

The command listens on a port of 127.0.0.1, prints its address, and starts remote-viewer, vncviewer
or gvncviewer, if one of them is installed. It exits when the viewer exits without an error. Otherwise,
and with --proxy-only, it accepts connections until Ctrl-C. Everyone on this computer who can connect
to the port sees the screen and can type, so use it only on a computer whose users you trust.

The virtual machine must have been created with spec.display: VNC. When it leaves its host, viewers are
disconnected, and can connect again.`,
		Example: `  millwright vm vnc web
  millwright vm vnc web --proxy-only --port 5900`,
	}, func(cmd *cobra.Command, vm client.ObjectKey, calls *remote) error {
		v.dial = func(ctx context.Context) (*websocket.Conn, error) { return calls.vnc(ctx, vm) }
		v.out, v.messages = cmd.OutOrStdout(), cmd.ErrOrStderr()
		err := calls.checkVNC(cmd.Context(), vm)
		if err == nil {
			err = v.run(cmd.Context())
		}
		if err != nil {
			return fmt.Errorf("cannot connect to the display of virtual machine %s: %w", vm.Name, err)
		}
		return nil
	})
	cmd.Flags().BoolVar(&v.proxyOnly, "proxy-only", false, "do not start a viewer")
	cmd.Flags().Uint16Var(&v.port, "port", 0, "local port to listen on; 0 selects a free one")
	return cmd
}

// run accepts viewers until the context is canceled, or until the viewer that it has started exits.
func (v *vncViewer) run(ctx context.Context) error {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(v.port))))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fmt.Fprintf(v.out, "vnc://%s\n", listener.Addr())
	if !v.proxyOnly {
		go func() {
			if v.view(ctx, listener.Addr().(*net.TCPAddr).Port) {
				cancel()
			}
		}()
	}
	accept(ctx, listener, v.messages, func(conn net.Conn) {
		if err := v.connect(ctx, conn); err != nil {
			fmt.Fprintf(v.messages, "the viewer was disconnected: %s\n", messages.Line(err.Error()))
		}
	})
	return nil
}

// connect connects a viewer until it disconnects.
func (v *vncViewer) connect(ctx context.Context, viewer net.Conn) error {
	socket, err := v.dial(ctx)
	if err != nil {
		return err
	}
	return carry(ctx, socket, viewer, viewer, displayEnd)
}

// displayEnd explains the error that disconnected a viewer. It returns nil if the viewer itself disconnected.
func displayEnd(err error) error {
	if closed, is := errors.AsType[*websocket.CloseError](err); is && closed.Code == websocket.CloseGoingAway {
		return errors.New("the virtual machine has terminated or left its host; connect again to continue")
	}
	return forwardEnd(err)
}

// viewers are the programs that view starts, with the argument for a port of 127.0.0.1.
var viewers = []struct {
	program  string
	argument func(port int) string
}{
	{"remote-viewer", func(port int) string { return fmt.Sprintf("vnc://127.0.0.1:%d", port) }},
	{"vncviewer", func(port int) string { return fmt.Sprintf("127.0.0.1::%d", port) }},
	{"gvncviewer", func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port-firstVNCPort) }},
}

// firstVNCPort is the port of display 0.
const firstVNCPort = 5900

// view runs a viewer until it exits, and reports whether it exited without an error. If no viewer is installed, or if it
// fails, view prints a message.
func (v *vncViewer) view(ctx context.Context, port int) bool {
	for _, viewer := range viewers {
		path, err := exec.LookPath(viewer.program)
		if err != nil {
			continue
		}
		command := exec.CommandContext(ctx, path, viewer.argument(port))
		command.Stdout, command.Stderr = v.messages, v.messages
		if err = command.Run(); err != nil && ctx.Err() == nil {
			fmt.Fprintf(v.messages, "%s failed: %s; connect another viewer to this address, or press Ctrl-C to stop\n", viewer.program, messages.Line(err.Error()))
		}
		return err == nil
	}
	fmt.Fprintln(v.messages, "No VNC viewer found: remote-viewer, vncviewer and gvncviewer are not installed. Connect another viewer to this address, or press Ctrl-C to stop.")
	return false
}

func newScreenshot() *cobra.Command {
	file := ""
	cmd := newCall(&cobra.Command{
		Use:   "screenshot NAME",
		Short: "Save a screenshot of the display of a virtual machine",
		Long: `Save a screenshot of the display of a virtual machine as a PNG image. Its permission is separate from that
of vnc, and does not permit typing.

The virtual machine must have been created with spec.display: VNC.`,
		Example: `  millwright vm screenshot web
  millwright vm screenshot web -f - > screen.png`,
	}, func(cmd *cobra.Command, vm client.ObjectKey, calls *remote) error {
		return saveScreenshot(cmd, file, vm.Name, func() ([]byte, error) { return calls.screenshot(cmd.Context(), vm) })
	})
	cmd.Flags().StringVarP(&file, "file", "f", "", "file to write; an existing file is replaced; - is standard output (default NAME.png)")
	return cmd
}

// saveScreenshot writes a screenshot to a file, or to standard output if the file is "-".
func saveScreenshot(cmd *cobra.Command, file, vm string, take func() ([]byte, error)) error {
	out := terminal.Raw(cmd.OutOrStdout())
	if to, is := out.(*os.File); file == "-" && is && term.IsTerminal(int(to.Fd())) {
		return args.Wrongf("--file: standard output is a terminal; redirect it, or name a file")
	}
	picture, err := take()
	if err != nil {
		return fmt.Errorf("cannot take a screenshot of virtual machine %s: %w", vm, err)
	}
	if file == "-" {
		_, err = out.Write(picture)
		return err
	}
	if file == "" {
		file = vm + ".png"
	}
	if err := os.WriteFile(file, picture, 0o600); err != nil {
		return fmt.Errorf("cannot save the screenshot: %w", err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s was saved.\n", file)
	return err
}
