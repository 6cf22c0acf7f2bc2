package identity

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
)

// channel connects two sides. It returns what the server has received, and the server's error.
func channel(t *testing.T, server, client *Credentials, expected [2]Peer, protocols [2]string, send func(*tls.Conn)) (string, error) {
	t.Helper()
	listener := value[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer func() { _ = listener.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return
		}
		if conn, err := client.Connect(t.Context(), raw, expected[1], protocols[1]); err == nil {
			send(conn)
		}
	}()
	defer func() { <-done }()
	raw := value[net.Conn](t)(listener.Accept())
	conn, err := server.Accept(t.Context(), raw, expected[0], protocols[0])
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	got, err := io.ReadAll(conn)
	return string(got), err
}

func TestCredentials_ChannelIsForOnePeer(t *testing.T) {
	clock := newClock()
	authority := value[*Authority](t)(NewAuthority(clock.Now()))
	foreign := value[*Authority](t)(NewAuthority(clock.Now()))
	source, target := pod, Peer{Namespace: pod.Namespace, VM: pod.VM, Pod: "vm-1-def"}
	another := Peer{Namespace: pod.Namespace, VM: "vm-2", Pod: "vm-2-abc"}
	one, other := holding(t, authority, target, clock), holding(t, authority, source, clock)
	both, memory := [2]Peer{source, target}, [2]string{"memory", "memory"}
	hello := func(conn *tls.Conn) { _, _ = conn.Write([]byte("hello")); _ = conn.Close() }
	for name, test := range map[string]struct {
		server, client *Credentials
		expected       [2]Peer
		protocols      [2]string
		works          bool
	}{
		"matching peers":        {one, other, both, memory, true},
		"another VM":            {one, holding(t, authority, another, clock), both, memory, false},
		"the controller":        {one, holding(t, authority, Controller(), clock), both, memory, false},
		"another installation":  {one, holding(t, foreign, source, clock), both, memory, false},
		"another target":        {holding(t, authority, another, clock), other, both, memory, false},
		"another purpose":       {one, other, both, [2]string{"memory", "disk"}, false},
		"no client is expected": {one, other, [2]Peer{{}, target}, memory, false},
		"no server is expected": {one, other, [2]Peer{source, {}}, memory, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := channel(t, test.server, test.client, test.expected, test.protocols, hello)
			if works := err == nil && got == "hello"; works != test.works {
				t.Errorf("received %q, %v", got, err)
			}
		})
	}
}

func TestSiblings_AcceptAny(t *testing.T) {
	clock := newClock()
	authority := value[*Authority](t)(NewAuthority(clock.Now()))
	foreign := value[*Authority](t)(NewAuthority(clock.Now()))
	server := Peer{Namespace: pod.Namespace, VM: pod.VM, Pod: "vm-1-disks"}
	siblings := Siblings{Credentials: holding(t, authority, server, clock), Namespace: pod.Namespace, VM: pod.VM}
	for name, test := range map[string]struct {
		client *Credentials
		want   string
	}{
		"a sibling":            {holding(t, authority, pod, clock), pod.Pod},
		"another VM":           {holding(t, authority, Peer{Namespace: pod.Namespace, VM: "vm-2", Pod: pod.Pod}, clock), ""},
		"another namespace":    {holding(t, authority, Peer{Namespace: "other", VM: pod.VM, Pod: pod.Pod}, clock), ""},
		"the controller":       {holding(t, authority, Controller(), clock), ""},
		"another installation": {holding(t, foreign, pod, clock), ""},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			done := make(chan struct{})
			go func() {
				defer close(done)
				if conn, err := test.client.Connect(t.Context(), theirs, server, "disks"); err == nil {
					_, _ = io.Copy(io.Discard, conn)
				}
			}()
			conn, got, err := siblings.AcceptAny(t.Context(), ours, "disks")
			if (err == nil) != (test.want != "") || err == nil && got != test.want {
				t.Errorf("accepted %q, %v; want %q", got, err, test.want)
			}
			if err == nil {
				_ = conn.Close()
			}
			_ = ours.Close()
			<-done
		})
	}
}
