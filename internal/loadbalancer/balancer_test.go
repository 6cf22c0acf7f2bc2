package loadbalancer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

// balanced is a Balancer in a synctest bubble, with servers that clients recognize.
type balanced struct {
	*Balancer
	t       *testing.T
	clients *memnet.Network
	servers map[string]*fakeServer
}

// fakeServer responds to health checks with its health, and to every line of a client with its name.
type fakeServer struct {
	*memnet.Network
	name   string
	health atomic.Int64
}

// newBalanced starts a Balancer with Ready servers of the given names.
func newBalanced(t *testing.T, opts Options, names ...string) *balanced {
	b := &balanced{t: t, clients: memnet.New(), servers: map[string]*fakeServer{}}
	opts.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	opts.Check = ask
	opts.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		return b.servers[address].Dial(ctx, address)
	}
	b.Balancer = New(opts)
	for _, name := range names {
		s := &fakeServer{Network: memnet.New(), name: name}
		s.health.Store(int64(Ready))
		b.servers[name] = s
		go s.serve()
		t.Cleanup(func() { _ = s.Close() })
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Serve(ctx, b.clients) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	b.SetServers(names)
	synctest.Wait()
	return b
}

func (s *fakeServer) serve() {
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				response := s.name
				if lines.Text() == "health" {
					response = fmt.Sprint(s.health.Load())
				}
				if _, err := fmt.Fprintln(conn, response); err != nil {
					return
				}
			}
		}()
	}
}

// ask is the health check of these servers.
func ask(_ context.Context, conn net.Conn) (Health, error) {
	var health Health
	if _, err := io.WriteString(conn, "health\n"); err != nil {
		return Down, err
	}
	_, err := fmt.Fscan(conn, &health)
	return health, err
}

// becomes changes the health of a server, and waits until it was checked.
func (b *balanced) becomes(name string, health Health) {
	b.servers[name].health.Store(int64(health))
	time.Sleep(checkEvery + time.Second)
	synctest.Wait()
}

// client is a connection to the Balancer.
type client struct {
	net.Conn
	t     *testing.T
	lines *bufio.Scanner
}

func (b *balanced) connects() *client {
	b.t.Helper()
	conn, err := b.clients.Dial(b.t.Context(), "")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return &client{conn, b.t, bufio.NewScanner(conn)}
}

// isWith checks which server the client is connected to; "" means that it is disconnected.
func (c *client) isWith(want string) {
	c.t.Helper()
	got := ""
	if _, err := fmt.Fprintln(c, "who are you?"); err == nil && c.lines.Scan() {
		got = c.lines.Text()
	}
	if got != want {
		c.t.Errorf("connected to %q, want %q", got, want)
	}
}

// isOpen checks whether the client is still connected, without sending anything.
func (c *client) isOpen(want bool) {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	var late net.Error
	if open := errors.As(err, &late) && late.Timeout(); open != want {
		c.t.Errorf("the client is connected: %t, want %t (%v)", open, want, err)
	}
	_ = c.SetReadDeadline(time.Time{})
}

func TestBalancer_SpreadsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalanced(t, Options{}, "a", "b")
		first := b.connects()
		first.isWith("a")
		b.connects().isWith("b")
		b.connects().isWith("a")
		_ = first.Close()
		synctest.Wait()
		b.connects().isWith("a")
	})
}

func TestBalancer_SelectsReadyServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := atomic.Int64{}
		b := newBalanced(t, Options{Changed: func() { changes.Add(1) }}, "a", "b")
		old := b.connects()
		old.isWith("a")
		b.becomes("a", Unready)
		for range 3 {
			b.connects().isWith("b")
		}
		old.isWith("a") // existing connections may complete
		b.becomes("b", Unready)
		if ready, up := b.Healthy(Ready), b.Healthy(Unready); ready != 0 || up != 2 {
			t.Errorf("%d servers are ready and %d respond", ready, up)
		}
		b.connects().isWith("a") // an API server that reports what is missing is better than none
		if got := changes.Load(); got != 4 {
			t.Errorf("%d changes were announced, want 2 that servers are ready and 2 that they are not", got)
		}
	})
}

func TestBalancer_ServersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalanced(t, Options{}, "a", "b", "c")
		b.SetServers(nil)
		b.connects().isWith("")
		b.SetServers([]string{"a"})
		synctest.Wait()
		first := b.connects()
		first.isWith("a")
		b.SetServers([]string{"a", "b", "c"})
		synctest.Wait()
		second := b.connects()
		second.isWith("b")
		b.SetServers([]string{"b", "c"})
		synctest.Wait()
		first.isOpen(false)
		second.isWith("b")
		b.connects().isWith("c")
		before := b.servers["a"].Dials()
		time.Sleep(time.Minute)
		if got := b.servers["a"].Dials(); got != before {
			t.Errorf("a server that was taken away was asked %d more times", got-before)
		}
	})
}

// TestBalancer_ClosesConnectionsOfVanishedServer checks that the connections of a vanished host are closed. Otherwise
// they would stay open indefinitely.
func TestBalancer_ClosesConnectionsOfVanishedServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalanced(t, Options{}, "a", "b")
		client := b.connects()
		client.isWith("a")
		b.servers["a"].Set(memnet.Cut{Silent: true})
		time.Sleep(checkEvery + checkLimit) // one check has failed
		client.isOpen(true)
		time.Sleep(failures*(checkEvery+checkLimit) - checkEvery - checkLimit + time.Second)
		client.isOpen(false)
		b.connects().isWith("b")
		b.servers["a"].Set(memnet.Cut{})
		time.Sleep(checkEvery + checkLimit)
		synctest.Wait()
		b.connects().isWith("a")
	})
}

func TestBalancer_TriesNextServerWhenRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalanced(t, Options{}, "a", "b")
		b.servers["a"].Set(memnet.Cut{Refused: true}) // not detected yet
		b.connects().isWith("b")
	})
}

func TestBalancer_SilentClientOpensNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalanced(t, Options{}, "a")
		client := b.connects()
		time.Sleep(connlimit.HandshakeTimeout - time.Second)
		client.isOpen(true)
		if open := b.servers["a"].Open(); open != 0 {
			t.Errorf("the server has %d connections", open)
		}
		time.Sleep(2 * time.Second)
		client.isOpen(false)
		talker := b.connects()
		talker.isWith("a")
		time.Sleep(time.Hour) // a watch may be idle
		talker.isWith("a")
	})
}

func TestBalancer_LimitsConnections(t *testing.T) {
	for name, opts := range map[string]Options{
		"in total": {MaxConnections: 2, MaxPerClient: 9}, "of a client": {MaxConnections: 9, MaxPerClient: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBalanced(t, opts, "a")
				first := b.connects()
				first.isWith("a")
				b.connects() // silent, so it does not count
				b.connects().isWith("a")
				b.connects().isWith("")
				_ = first.Close()
				synctest.Wait()
				b.connects().isWith("a")
			})
		})
	}
}

// Clients of one endpoint cannot use the connections of another one, even if there are many of them.
func TestBalancer_HasShareOfTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		total := NewCapacity(16, 2) // two shares of 4, and 8 for all
		flooded, other := newBalanced(t, Options{Capacity: total}, "a"), newBalanced(t, Options{Capacity: total}, "a")
		for range 12 {
			flooded.connects().isWith("a")
		}
		flooded.connects().isWith("") // the client has used all but the share of the other endpoint
		first := other.connects()
		first.isWith("a")
		for range 3 {
			other.connects().isWith("a")
		}
		other.connects().isWith("")
		_ = first.Close()
		synctest.Wait()
		other.connects().isWith("a")
		if got := other.Stats().Refused; got != 1 {
			t.Errorf("%d connections were refused, want 1", got)
		}
	})
}

// addressed is a connection of a client with an address.
type addressed struct {
	net.Conn
	from   net.IP
	closed func()
}

func (a addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: a.from} }
func (a addressed) Close() error         { a.closed(); return nil }

// Clients with many connections, from several addresses, do not keep out others, and those with few connections stay.
func TestBalancer_SharesCapacityBetweenClients(t *testing.T) {
	for name, opts := range map[string]Options{
		"of the endpoint": {MaxConnections: 9, MaxPerClient: 4},
		"of all":          {MaxConnections: 99, MaxPerClient: 4, Capacity: NewCapacity(9, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			b := New(opts)
			open := map[byte]int{}
			connect := func(from byte) bool {
				_, ok := b.admit(addressed{from: net.IPv4(192, 0, 2, from), closed: func() { open[from]-- }})
				if ok {
					open[from]++
				}
				return ok
			}
			connect(1)
			for range 9 {
				connect(8)
				connect(9)
			}
			if !connect(2) || !connect(3) || !connect(2) {
				t.Error("a client has no connection")
			}
			if want := map[byte]int{1: 1, 2: 2, 3: 1, 8: 2, 9: 3}; !maps.Equal(open, want) {
				t.Errorf("clients have %v connections, want %v", open, want)
			}
			if connect(9) || open[1] != 1 {
				t.Error("a client with many connections displaced others")
			}
			if b.Stats().Refused == 0 {
				t.Error("no connection counts as refused")
			}
		})
	}
}

func TestCapacity_LimitsTotal(t *testing.T) {
	total := NewCapacity(16, 2)
	flooded, other := total.reserve(), total.reserve()
	var releases []func()
	for range 100 {
		if release, ok := flooded.take(); ok {
			releases = append(releases, release)
		}
	}
	if len(releases) != 12 {
		t.Errorf("one endpoint has %d connections, want its share of 4 and all 8 that are common", len(releases))
	}
	for range 100 {
		if release, ok := other.take(); ok {
			releases = append(releases, release)
		}
	}
	if len(releases) != 16 {
		t.Errorf("there are %d connections, want 16", len(releases))
	}
	for _, release := range releases {
		release()
	}
	if _, ok := other.take(); !ok {
		t.Error("released connections are not available again")
	}
}

func TestBalancer_ServeClosesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBalanced(t, Options{}, "a")
		ctx, cancel := context.WithCancel(t.Context())
		other := New(b.opts)
		clients, ended := memnet.New(), make(chan error)
		go func() { ended <- other.Serve(ctx, clients) }()
		other.SetServers([]string{"a"})
		synctest.Wait()
		conn, err := clients.Dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		of := &client{conn, t, bufio.NewScanner(conn)}
		of.isWith("a")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		of.isOpen(false)
		other.SetServers([]string{"a"}) // too late
		if got := other.Healthy(Down); got != 0 {
			t.Errorf("it has %d servers after its end", got)
		}
		_ = conn.Close()
	})
}
