package ports

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
	"github.com/millwright-dev/millwright/test/support/freeport"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// DialGuest implements Guest.
func (d Dial) DialGuest(ctx context.Context, port uint16) (dialer.Conn, error) { return d(ctx, port) }

// DialGuestUDP implements Guest.
func (d Dial) DialGuestUDP(uint16, func([]byte)) (dialer.Flow, error) {
	return nil, errors.New("no datagrams")
}

// guestAt returns a Dial for a guest that is the server at an address.
func guestAt(address string) Dial {
	return func(ctx context.Context, _ uint16) (dialer.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil
	}
}

// connect returns a connection to a guest that handles one connection.
func connect(t *testing.T, handle func(*net.TCPConn)) *net.TCPConn {
	t.Helper()
	guest, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { guest.Close() })
	go func() {
		conn, err := guest.Accept()
		if err != nil {
			return // the test has failed
		}
		defer conn.Close()
		handle(conn.(*net.TCPConn))
	}()
	return open(t, guestAt(guest.Addr().String()))
}

// open returns a connection to a port of a server.
func open(t *testing.T, dial Dial) *net.TCPConn {
	t.Helper()
	port := freeport.Address(t).Port()
	s, err := Listen(Config{Address: "127.0.0.1", Ports: []uint16{port}}, dial, nil)
	must(t, err)
	t.Cleanup(s.Close)
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn.(*net.TCPConn)
}

// A connection carries all bytes, and the end of each direction.
func TestServer_CarriesEveryByteBothWays(t *testing.T) {
	conn := connect(t, func(guest *net.TCPConn) {
		request, _ := io.ReadAll(guest) // returns once the client has closed its side
		_, _ = guest.Write(append(request, " and a response"...))
	})
	sent := bytes.Repeat([]byte("\x00\xff0123456789abcdef"), 64<<10)
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if want := append(sent, " and a response"...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
}

// A client of a guest that breaks the connection, or does not accept it, gets an error and not the end.
func TestServer_BrokenConnectionIsError(t *testing.T) {
	broken := connect(t, func(guest *net.TCPConn) {
		_, _ = guest.Read(make([]byte, 1))
		_ = guest.SetLinger(0) // the guest resets the connection
	})
	_, err := broken.Write([]byte("x"))
	must(t, err)
	connected := make(chan struct{}) // otherwise the client may get the error when it connects
	refused := open(t, func(context.Context, uint16) (dialer.Conn, error) {
		<-connected
		return nil, errors.New("refused")
	})
	close(connected)
	for name, conn := range map[string]*net.TCPConn{"broken": broken, "refused": refused} {
		if _, err := io.ReadAll(conn); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// pipe is a connection that records when its direction to the other side is closed.
type pipe struct {
	net.Conn
	from   io.Reader
	closed chan struct{}
}

func (p *pipe) Read(into []byte) (int, error) { return p.from.Read(into) }
func (p *pipe) CloseWrite() error             { close(p.closed); return nil }

// TestServer_ClientThatKeepsConnection checks that a client cannot keep a connection that the guest has closed, by neither
// closing it nor sending anything, and that a guest that has only closed its own direction still receives a slow upload.
func TestServer_ClientThatKeepsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe, err := ParseProbe("tcp://:80")
		must(t, err)
		ended, inside := net.Pipe()
		guest := &pipe{inside, strings.NewReader("response"), make(chan struct{})}
		s, err := Listen(Config{Probe: probe}, Dial(func(context.Context, uint16) (dialer.Conn, error) { return guest, nil }), nil)
		must(t, err)
		defer s.Close()
		client, server := net.Pipe()
		forwarded, began := make(chan struct{}), time.Now()
		side := &pipe{server, server, make(chan struct{})}
		go func() {
			defer close(forwarded)
			s.forward(t.Context(), side, 80)
		}()
		if response, err := io.ReadAll(io.LimitReader(client, 8)); err != nil || string(response) != "response" {
			t.Fatalf("%q, %v", response, err)
		}
		<-side.closed
		go io.Copy(io.Discard, ended)
		for range 10 { // an upload, with pauses
			time.Sleep(halfOpenTime - time.Second)
			if _, err := client.Write([]byte("x")); err != nil {
				t.Fatalf("after %s: %v", time.Since(began), err)
			}
		}
		idle := time.Now()
		<-forwarded
		if got := time.Since(idle); got != halfOpenTime {
			t.Errorf("the connection was closed after %s", got)
		}
	})
}

// TestServer_ClientHoldsAllConnections checks that a client that opens all connections and keeps them does not keep out
// others, and cannot fill the log.
func TestServer_ClientHoldsAllConnections(t *testing.T) {
	var log bytes.Buffer
	s, err := Listen(Config{}, nil, slog.New(slog.NewTextHandler(&log, nil)))
	must(t, err)
	defer s.Close()
	hostile, other := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)}
	var ended []int
	for n := range 2 * maxConnections {
		_, ok := s.admit(hostile, func() { ended = append(ended, n) })
		if want := n < maxConnections; ok != want {
			t.Fatalf("connection %d: %v, want %v", n, ok, want)
		}
	}
	release, ok := s.admit(other, func() { t.Error("the connection of the other client was closed") })
	if !ok || len(ended) != 1 || ended[0] != 0 {
		t.Errorf("another client: %v; the connections %v were closed", ok, ended)
	}
	if _, ok := s.admit(hostile, nil); ok {
		t.Error("there are more connections than the limit")
	}
	release()
	release()
	if _, ok := s.admit(hostile, nil); !ok {
		t.Error("a released connection counts")
	}
	if _, ok := s.admit(hostile, nil); ok {
		t.Error("a released connection counts twice")
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 {
		t.Errorf("%d lines in the log", lines)
	}
}

// Close closes connections, even if neither side sends anything.
func TestServer_ClosesConnections(t *testing.T) {
	guest, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer guest.Close()
	port := freeport.Address(t).Port()
	s, err := Listen(Config{Address: "127.0.0.1", Ports: []uint16{port}}, guestAt(guest.Addr().String()), nil)
	must(t, err)
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	must(t, err)
	defer conn.Close()
	accepted, err := guest.Accept()
	must(t, err)
	defer accepted.Close()
	s.Close()
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestServer_AwaitIdle checks when clients count as gone: when there has been no connection for a while.
func TestServer_AwaitIdle(t *testing.T) {
	const quiet = 10 * time.Second
	for name, test := range map[string]struct {
		connections func(*activity)
		want        time.Duration
	}{
		"no connections": {func(*activity) {}, quiet},
		"short connections": {func(a *activity) {
			for range 5 {
				time.Sleep(3 * time.Second)
				a.begin()
				a.end()
			}
		}, 15*time.Second + quiet},
		"a long connection": {func(a *activity) {
			a.begin()
			time.Sleep(25 * time.Second)
			a.end()
		}, 25*time.Second + quiet},
		"an endless connection": {(*activity).begin, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := Listen(Config{}, nil, nil)
				must(t, err)
				defer s.Close()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begun := time.Now()
				go test.connections(&s.activity)
				s.AwaitIdle(ctx, quiet)
				if got := time.Since(begun); got != test.want {
					t.Errorf("the clients are gone after %s, want %s", got, test.want)
				}
			})
		})
	}
}

// Listen reports a port that is in use, and leaves none open.
func TestListen_PortInUse(t *testing.T) {
	used, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer used.Close()
	free := freeport.Address(t).Port()
	_, err = Listen(Config{Address: "127.0.0.1", Ports: []uint16{free, used.Addr().(*net.TCPAddr).AddrPort().Port()}}, nil, nil)
	if err == nil {
		t.Fatal("no error")
	}
	again, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(free))))
	must(t, err)
	again.Close()
}

func TestParseProbe(t *testing.T) {
	for text, valid := range map[string]bool{
		"tcp://:80": true, "http://:80/healthz?full=1": true, "https://:6443/readyz": true,
		"": false, "tcp://": false, "tcp://:0": false, "tcp://:65536": false, "tcp://:80/path": false, "tcp://host:80": false,
		"http://user@:80/": false, "ftp://:21/": false, "http://[::1": false,
	} {
		if _, err := ParseProbe(text); (err == nil) != valid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestProbe_Check checks the result for each response of a guest.
func TestProbe_Check(t *testing.T) {
	status := http.StatusOK
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		if status == http.StatusFound {
			w.Header().Set("Location", "http://192.0.2.1/") // must not be followed
		}
		w.WriteHeader(status)
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	junk, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer junk.Close()
	go func() {
		for {
			conn, err := junk.Accept()
			if err != nil {
				return // the test is complete
			}
			_, _ = conn.Write([]byte("\x1b]52;c;not HTTP\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	for name, test := range map[string]struct {
		probe, guest string
		status       int
		want         string
	}{
		"accepts":          {"tcp://:80", plain.Listener.Addr().String(), 0, ""},
		"refuses":          {"tcp://:80", "127.0.0.1:1", 0, "port 80 does not accept connections"},
		"ready":            {"http://:80/healthz", plain.Listener.Addr().String(), http.StatusOK, ""},
		"redirects":        {"http://:80/healthz", plain.Listener.Addr().String(), http.StatusFound, ""},
		"not ready":        {"http://:80/healthz", plain.Listener.Addr().String(), http.StatusServiceUnavailable, "port 80 responds with the HTTP status 503"},
		"any certificate":  {"https://:6443/healthz", secure.Listener.Addr().String(), http.StatusOK, ""},
		"not TLS":          {"https://:6443/healthz", plain.Listener.Addr().String(), http.StatusOK, "port 6443 does not respond to HTTPS requests"},
		"another protocol": {"http://:80/healthz", junk.Addr().String(), http.StatusOK, "port 80 does not respond to HTTP requests"},
	} {
		t.Run(name, func(t *testing.T) {
			status = test.status
			probe, err := ParseProbe(test.probe)
			must(t, err)
			if err := probe.check(t.Context(), guestAt(test.guest)); errorText(err) != test.want {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// idle is a connection that can only be closed.
type idle struct{ dialer.Conn }

func (idle) Close() error { return nil }

// TestServer_Check checks when the guest becomes ready and not ready.
func TestServer_Check(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var accepts, silent bool
		dial := func(ctx context.Context, _ uint16) (dialer.Conn, error) {
			if silent {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if !accepts {
				return nil, errors.New("refused from port " + strconv.FormatInt(time.Since(begin).Nanoseconds(), 10))
			}
			return idle{}, nil
		}
		probe, err := ParseProbe("tcp://:80")
		must(t, err)
		s, err := Listen(Config{Probe: probe}, Dial(dial), nil)
		must(t, err)
		defer s.Close()
		var reports []string
		stop := s.Check(false, func(problem error) { reports = append(reports, strings.TrimSpace("ready "+errorText(problem))) })
		expect := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if strings.Join(reports, "; ") != strings.Join(want, "; ") {
				t.Errorf("after %s: %q, want %q", time.Since(begin), reports, want)
			}
			reports = nil
		}
		expect(time.Millisecond, "ready port 80 does not accept connections")
		expect(29 * time.Second)
		expect(2*time.Second, "ready port 80 does not accept connections") // twice a minute
		accepts = true
		expect(2*time.Second, "ready")
		accepts = false
		expect(25 * time.Second) // two failures
		expect(10*time.Second, "ready port 80 does not accept connections")
		silent = true
		expect(36*time.Second, "ready port 80 did not respond within 4s")
		silent, accepts = false, true
		expect(8*time.Second, "ready")
		accepts = false
		stop()
		expect(time.Minute)
	})
}

// TestServer_CheckAfterMigration checks that a guest that was ready is not ready after several failures.
func TestServer_CheckAfterMigration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe, err := ParseProbe("tcp://:80")
		must(t, err)
		refuse := func(context.Context, uint16) (dialer.Conn, error) { return nil, errors.New("refused") }
		s, err := Listen(Config{Probe: probe}, Dial(refuse), nil)
		must(t, err)
		defer s.Close()
		begin, reported := time.Now(), make(chan time.Duration, 1)
		stop := s.Check(true, func(error) { reported <- time.Since(begin) })
		defer stop()
		if after := <-reported; after != 20*time.Second {
			t.Errorf("not ready after %s, want three failures in 20s", after)
		}
	})
}
