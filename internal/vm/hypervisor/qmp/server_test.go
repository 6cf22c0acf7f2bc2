package qmp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}`

// command is a command that the scripted server received.
type command struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        string          `json:"id"`
}

// server is QEMU's side of a connection. A test defines its responses line by line.
type server struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Scanner
}

func newServer(t *testing.T, conn net.Conn) *server {
	t.Cleanup(func() { _ = conn.Close() })
	return &server{t: t, conn: conn, lines: bufio.NewScanner(conn)}
}

func (s *server) send(format string, arguments ...any) {
	if _, err := fmt.Fprintf(s.conn, format+"\r\n", arguments...); err != nil {
		s.t.Errorf("server cannot write: %v", err)
	}
}

// next waits for a command. It returns false at the end of the stream.
func (s *server) next() (command, bool) {
	var got command
	if !s.lines.Scan() {
		return got, false
	}
	if err := json.Unmarshal(s.lines.Bytes(), &got); err != nil {
		s.t.Errorf("the client sent %q: %v", s.lines.Text(), err)
	}
	return got, true
}

// welcome sends the greeting and enables the capabilities.
func (s *server) welcome() {
	s.send("%s", greeting)
	got, _ := s.next()
	if got.Execute != "qmp_capabilities" {
		s.t.Errorf("first command is %q, want qmp_capabilities", got.Execute)
	}
	s.send(`{"return": {}, "id": %q}`, got.ID)
}

// socketPair returns both conns of a Unix socket, as in a real connection to QEMU.
func socketPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socket")
		conns[i], err = net.FileConn(file)
		_ = file.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return conns[0], conns[1]
}

// connect returns a client of a server that has sent its greeting and now runs the script.
func connect(t *testing.T, script func(*server)) *Client {
	return connectWithEvents(t, func(Event) {}, script)
}

func connectWithEvents(t *testing.T, onEvent func(Event), script func(*server)) *Client {
	t.Helper()
	ours, theirs := socketPair(t)
	playing := newServer(t, theirs)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		playing.welcome()
		script(playing)
	}()
	client, err := New(t.Context(), ours, onEvent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ours.Close()
		<-ended
	})
	return client
}
