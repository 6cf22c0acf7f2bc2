package qmp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func TestClient_ExecuteEncodesAndDecodes(t *testing.T) {
	client := connect(t, func(s *server) {
		got, _ := s.next()
		if diff := cmp.Diff(`{"path":"/machine","property":"type"}`, string(got.Arguments)); diff != "" {
			t.Errorf("arguments (-want +got):\n%s", diff)
		}
		s.send(`{"return": "pc-q35-7.2-machine", "id": %q}`, got.ID)
	})
	var result string
	arguments := map[string]string{"path": "/machine", "property": "type"}
	if err := client.Execute(t.Context(), "qom-get", arguments, &result); err != nil {
		t.Fatal(err)
	}
	if result != "pc-q35-7.2-machine" {
		t.Errorf("result = %q", result)
	}
}

func TestClient_RejectionIsTyped(t *testing.T) {
	client := connect(t, func(s *server) {
		got, _ := s.next()
		s.send(`{"id": %q, "error": {"class": "CommandNotFound", "desc": "no such thing"}}`, got.ID)
		got, _ = s.next()
		s.send(`{"return": {}, "id": %q}`, got.ID)
	})
	err := client.Execute(t.Context(), "nonsense", nil, nil)
	var refusal *Error
	if !errors.As(err, &refusal) {
		t.Fatalf("error = %v, want an *Error", err)
	}
	want := Error{Command: "nonsense", Class: "CommandNotFound", Description: "no such thing"}
	if diff := cmp.Diff(want, *refusal); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if err := client.Execute(t.Context(), "stop", nil, nil); err != nil {
		t.Errorf("after a rejected command: %v", err)
	}
}

func TestClient_ResponsesAreMatchedByID(t *testing.T) {
	const commands = 20
	client := connect(t, func(s *server) {
		var got []command
		for range commands {
			next, _ := s.next()
			got = append(got, next)
		}
		for i := len(got) - 1; i >= 0; i-- { // in reverse order
			s.send(`{"return": %q, "id": %q}`, got[i].Execute, got[i].ID)
		}
	})
	var group sync.WaitGroup
	for i := range commands {
		group.Go(func() {
			name, result := fmt.Sprintf("command-%d", i), ""
			if err := client.Execute(t.Context(), name, nil, &result); err != nil {
				t.Error(err)
			}
			if result != name {
				t.Errorf("%s got the response %q", name, result)
			}
		})
	}
	group.Wait()
}

func TestClient_LostConnectionFailsAllCommands(t *testing.T) {
	const commands = 5
	client := connect(t, func(s *server) {
		for range commands {
			s.next()
		}
		_ = s.conn.Close()
	})
	var group sync.WaitGroup
	for range commands {
		group.Go(func() {
			if err := client.Execute(t.Context(), "cont", nil, nil); !errors.Is(err, ErrDisconnected) {
				t.Errorf("error = %v, want ErrDisconnected", err)
			}
		})
	}
	group.Wait()
	<-client.Done()
	if err := client.Execute(t.Context(), "cont", nil, nil); !errors.Is(err, ErrDisconnected) {
		t.Errorf("afterwards: error = %v, want ErrDisconnected", err)
	}
}

func TestClient_CanceledCommandLeavesConnectionUsable(t *testing.T) {
	asked, giveUp := make(chan struct{}), errors.New("gave up")
	client := connect(t, func(s *server) {
		late, _ := s.next()
		close(asked)
		next, _ := s.next()
		s.send(`{"return": "too late", "id": %q}`, late.ID)
		s.send(`{"return": "in time", "id": %q}`, next.ID)
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-asked
		cancel(giveUp)
	}()
	if err := client.Execute(ctx, "slow", nil, nil); !errors.Is(err, giveUp) {
		t.Errorf("error = %v, want the context's cause", err)
	}
	var result string
	if err := client.Execute(t.Context(), "fast", nil, &result); err != nil || result != "in time" {
		t.Errorf("next command = %q, %v", result, err)
	}
}

func TestClient_CanceledWhileQEMUDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		s := newServer(t, theirs)
		go s.welcome()
		client, err := New(t.Context(), ours, func(Event) {})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ours.Close() }()
		// The pipe has no buffer: the first command is stuck in the writer, and the second one cannot even be
		// passed to the writer.
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			go func() {
				if err := client.Execute(ctx, "stop", nil, nil); !errors.Is(err, context.Canceled) {
					t.Errorf("error = %v, want context.Canceled", err)
				}
			}()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		// A message that was started arrives completely.
		if got, ok := s.next(); !ok || got.Execute != "stop" {
			t.Errorf("server got %+v, want the canceled command", got)
		}
	})
}

func TestClient_EventsPrecedeResponse(t *testing.T) {
	var names []string
	client := connectWithEvents(t, func(event Event) { names = append(names, event.Name) }, func(s *server) {
		got, _ := s.next()
		for i := range 10 {
			s.send(`{"event": "E%d", "timestamp": {"seconds": 1700000000, "microseconds": 5}}`, i)
		}
		s.send(`{"return": {}, "id": %q}`, got.ID)
	})
	if err := client.Execute(t.Context(), "cont", nil, nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"E0", "E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8", "E9"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestClient_NewFails(t *testing.T) {
	for name, script := range map[string]func(*server){
		"no greeting":                    func(s *server) { _ = s.conn.Close() },
		"not QMP":                        func(s *server) { s.send("SSH-2.0-OpenSSH_9.2") },
		"line that is too long":          func(s *server) { _, _ = s.conn.Write([]byte(strings.Repeat("x", maxLine+1))) },
		"closed after the first command": func(s *server) { s.send("%s", greeting); s.next(); _ = s.conn.Close() },
		"response without id": func(s *server) {
			s.send("%s", greeting)
			s.next()
			s.send(`{"error": {"class": "GenericError", "desc": "JSON parse error"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := socketPair(t)
			go script(newServer(t, theirs))
			if _, err := New(t.Context(), ours, func(Event) {}); !errors.Is(err, ErrDisconnected) {
				t.Errorf("error = %v, want ErrDisconnected", err)
			}
		})
	}
}

func TestClient_NewRespectsContext(t *testing.T) {
	ours, theirs := socketPair(t)
	newServer(t, theirs) // sends nothing
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(ctx, ours, func(Event) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
}
