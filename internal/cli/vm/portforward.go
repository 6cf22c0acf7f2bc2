package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/gorilla/websocket"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// localhost is the default of --address. It stands for the loopback addresses of both IP versions.
const localhost = "localhost"

// portAttempts is how many ports are tried for one that is free at all addresses.
const portAttempts = 10

// portForward is the command of that name.
type portForward struct {
	// Flags.
	addresses []string
	stdio     bool

	ports []portPair
	// dial connects to a port of the guest.
	dial func(ctx context.Context, port uint16) (*websocket.Conn, error)
	// out gets a line for each port and each connection, and messages get one for each failure.
	out, messages io.Writer
}

// portPair is an argument of the command.
type portPair struct {
	// local is the local port; 0 selects a free one.
	local uint16
	// remote is the port of the guest.
	remote uint16
}

func newPortForward() *cobra.Command {
	p, flags := &portForward{}, &kubeconfig.Flags{}
	cmd := &cobra.Command{
		Use:   "port-forward NAME [LOCAL_PORT:]REMOTE_PORT...",
		Short: "Forward local ports to TCP ports of a virtual machine",
		Long: `Forward local ports to TCP ports of a virtual machine, until Ctrl-C.

Without LOCAL_PORT, the local port is the same; with an empty one, as in ":80", it is a free one.
Connections go through the API server, and need no route to the virtual machine. Open ones are
lost when the guest leaves its host; new ones reach it there.

With --stdio, the command opens one connection immediately, and connects standard input and output to it.`,
		Example: `  millwright vm port-forward web 8080:80
  millwright vm port-forward web 8080:80 8443:443 --address 127.0.0.1,192.0.2.10
  ssh -o ProxyCommand="millwright vm port-forward --stdio web 22" web`,
		Args: func(_ *cobra.Command, given []string) error {
			if len(given) < 2 || given[0] == "" {
				return args.Wrongf("expected the name of a virtual machine and at least one port, as [LOCAL_PORT:]REMOTE_PORT")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := p.parse(given[1:]); err != nil {
				return err
			}
			_, calls, err := connect(flags)
			if err != nil {
				return err
			}
			vm := client.ObjectKey{Namespace: flags.Namespace, Name: given[0]}
			p.dial = func(ctx context.Context, port uint16) (*websocket.Conn, error) { return calls.forward(ctx, vm, port) }
			p.out, p.messages = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if p.stdio {
				err = p.connect(cmd.Context(), os.Stdin, terminal.Raw(p.out))
			} else if err = calls.checkForward(cmd.Context(), vm, p.ports[0].remote); err == nil {
				err = p.run(cmd.Context())
			}
			if err != nil {
				return flags.ExplainStopped(fmt.Errorf("cannot forward ports of virtual machine %s: %w", vm.Name, err))
			}
			return nil
		},
	}
	cmd.ValidArgsFunction = flags.CompleteName(vmKind)
	flags.Add(cmd, virtualMachines)
	cmd.Flags().StringSliceVar(&p.addresses, "address", []string{localhost}, "local addresses to listen on, comma-separated: IP addresses or localhost")
	cmd.Flags().BoolVar(&p.stdio, "stdio", false, "connect standard input and output to the port, instead of listening")
	return cmd
}

// parse checks the arguments and flags.
func (p *portForward) parse(ports []string) error {
	for _, text := range ports {
		pair, err := parsePair(text)
		if err != nil {
			return err
		}
		p.ports = append(p.ports, pair)
	}
	if p.stdio && (len(p.ports) > 1 || strings.Contains(ports[0], ":")) {
		return args.Wrongf("--stdio: requires exactly one REMOTE_PORT")
	}
	for _, address := range p.addresses {
		if _, err := netip.ParseAddr(address); err != nil && address != localhost {
			return args.Wrongf("--address: %q is neither an IP address nor %s", address, localhost)
		}
	}
	if len(p.addresses) == 0 {
		return args.Wrongf("--address: requires an IP address or %s", localhost)
	}
	return nil
}

// parsePair reads [LOCAL_PORT:]REMOTE_PORT.
func parsePair(text string) (portPair, error) {
	local, remote, both := strings.Cut(text, ":")
	if !both {
		remote = local
	}
	to, err := strconv.ParseUint(remote, 10, 16)
	if err != nil || to == 0 {
		return portPair{}, args.Wrongf("invalid port %q; expected [LOCAL_PORT:]REMOTE_PORT, with ports from 1 to 65535", text)
	}
	if local == "" {
		return portPair{remote: uint16(to)}, nil
	}
	from, err := strconv.ParseUint(local, 10, 16)
	if err != nil {
		return portPair{}, args.Wrongf("invalid port %q; expected [LOCAL_PORT:]REMOTE_PORT, with ports from 1 to 65535", text)
	}
	return portPair{local: uint16(from), remote: uint16(to)}, nil
}

// run forwards connections until the context is canceled.
func (p *portForward) run(ctx context.Context) error {
	var all []net.Listener
	defer func() {
		for _, listener := range all {
			_ = listener.Close()
		}
	}()
	var handlers sync.WaitGroup
	defer handlers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before waiting for the handlers
	for _, pair := range p.ports {
		listeners, err := p.listen(pair.local)
		all = append(all, listeners...)
		if err != nil {
			return err
		}
		for _, listener := range listeners {
			fmt.Fprintf(p.out, "Forwarding from %s -> %d\n", listener.Addr(), pair.remote)
			handlers.Go(func() { p.serve(ctx, listener, pair.remote) })
		}
	}
	<-ctx.Done()
	return nil
}

// listen listens at a local port at all addresses. Port 0 selects one that is free at all of them.
func (p *portForward) listen(port uint16) (listeners []net.Listener, err error) {
	for range portAttempts {
		if listeners, err = p.listenOnce(port); port != 0 || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		// The system selected a port that is free at the first address, but in use at another.
		for _, listener := range listeners {
			_ = listener.Close()
		}
		listeners = nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w; choose another local port or --address", err)
	}
	return listeners, err
}

// listenOnce listens at a port at all addresses. If the port is 0, the system selects it for the first address.
func (p *portForward) listenOnce(port uint16) (listeners []net.Listener, err error) {
	open := func(host string) error {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			return err
		}
		listeners = append(listeners, listener)
		port = uint16(listener.Addr().(*net.TCPAddr).Port)
		return nil
	}
	for _, address := range p.addresses {
		host := address
		if address == localhost {
			host = "127.0.0.1"
		}
		if err := open(host); err != nil {
			return listeners, err
		}
		if address == localhost {
			_ = open("::1") // a host without IPv6 is served, too
		}
	}
	return listeners, nil
}

// serve forwards the connections of a listener until the context is canceled.
func (p *portForward) serve(ctx context.Context, listener net.Listener, remote uint16) {
	local := listener.Addr().(*net.TCPAddr).Port
	accept(ctx, listener, p.messages, func(conn net.Conn) {
		fmt.Fprintf(p.out, "Handling connection for %d\n", local)
		if err := p.forward(ctx, remote, conn, conn); err != nil {
			fmt.Fprintf(p.messages, "cannot forward %d -> %d: %s\n", local, remote, messages.Line(err.Error()))
		}
	})
}

// accept handles the connections of a listener until the context is canceled, which closes the listener and the connections.
// It closes each connection after handling it. If no more connections can be accepted, it writes a line to errs.
func accept(ctx context.Context, listener net.Listener, errs io.Writer, handle func(net.Conn)) {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				fmt.Fprintf(errs, "cannot accept connections on %s: %s\n", listener.Addr(), messages.Line(err.Error()))
			}
			return
		}
		connections.Go(func() {
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			handle(conn)
		})
	}
}

// connect forwards one connection to the only port.
func (p *portForward) connect(ctx context.Context, in io.Reader, out io.Writer) error {
	return p.forward(ctx, p.ports[0].remote, in, out)
}

// forward connects to a port of the guest and carries data until the guest sends no more, or the local side breaks.
func (p *portForward) forward(ctx context.Context, port uint16, in io.Reader, out io.Writer) error {
	socket, err := p.dial(ctx, port)
	if err != nil {
		return err
	}
	return carry(ctx, socket, in, out, forwardEnd)
}

// carry carries data until the other side of the socket sends no more, or the local connection fails. It then closes the
// socket. end explains the error that closed it.
func carry(ctx context.Context, socket *websocket.Conn, in io.Reader, out io.Writer, end func(error) error) error {
	defer socket.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer stop()
	go func() {
		if forwardInput(socket, in) != nil {
			cancel()
		}
	}()
	for {
		_, piece, err := socket.ReadMessage()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return end(err)
		}
		if _, err := out.Write(piece); err != nil {
			return fmt.Errorf("cannot write the guest's data: %w", err)
		}
	}
}

// forwardInput sends the input to the guest, and then its end. It returns an error if reading fails. The other direction
// of the connection reports why sending fails.
func forwardInput(socket *websocket.Conn, in io.Reader) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := in.Read(buffer)
		if n > 0 && socket.WriteMessage(websocket.BinaryMessage, buffer[:n]) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			_ = socket.WriteMessage(websocket.BinaryMessage, nil)
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// forwardEnd explains the error that closed a forwarded connection. It returns nil if the guest closed the connection.
func forwardEnd(err error) error {
	closed, is := errors.AsType[*websocket.CloseError](err)
	switch {
	case !is:
		return fmt.Errorf("the connection was closed: %w", err)
	case closed.Code == websocket.CloseNormalClosure:
		return nil
	case closed.Code == websocket.CloseAbnormalClosure:
		return errors.New("the connection to the VM controller was lost")
	}
	return fmt.Errorf("the connection was closed: %s", closed.Text)
}
