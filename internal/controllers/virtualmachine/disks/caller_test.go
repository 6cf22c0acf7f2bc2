package disks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// volume is a fake disk server.
type volume struct {
	mu      sync.Mutex
	calls   []string
	respond func(call string) error
}

func (v *volume) call(ctx context.Context, format string, args ...any) error {
	call := fmt.Sprintf(format, args...)
	v.mu.Lock()
	v.calls = append(v.calls, call)
	respond := v.respond
	v.mu.Unlock()
	if respond == nil {
		return nil
	}
	err := respond(call)
	if errors.Is(err, context.DeadlineExceeded) { // the server does not respond
		<-ctx.Done()
	}
	return err
}

func (v *volume) Open(ctx context.Context, token storage.Token, pod string) (storage.Attachment, error) {
	return storage.Attachment{Address: "10.0.0.1:1", Pod: "s"}, v.call(ctx, "open %d %s", token, pod)
}

func (v *volume) Revoke(ctx context.Context, upTo storage.Token) error {
	return v.call(ctx, "revoke %d", upTo)
}

func (v *volume) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !slices.Equal(v.calls, want) {
		t.Errorf("the server got calls %q, want %q", v.calls, want)
	}
	v.calls = nil
}

// testCaller is a Caller whose requested passes are recorded.
type testCaller struct {
	*Caller
	volume *volume
	server Server
	passes chan time.Duration
}

func newTestCaller() *testCaller {
	c := &testCaller{volume: &volume{}, passes: make(chan time.Duration, 100)}
	c.server = Server{VM: types.NamespacedName{Namespace: "n", Name: "a"}, Pod: "s", Run: 1, Endpoint: "10.0.0.1:1"}
	c.Caller = New(Options{
		Connect: func(Server) (storage.Volume, func(), error) { return c.volume, func() {}, nil },
		Go: func(call func(context.Context)) bool {
			go call(context.Background())
			return true
		},
		Enqueue: func(_ types.NamespacedName, after time.Duration) { c.passes <- after },
		Clock:   clock.RealClock{},
	})
	return c
}

// pass makes a pass, and returns the state after the server has responded.
func (c *testCaller) pass(desired Desired) State {
	c.Ensure(c.server, desired)
	synctest.Wait()
	return c.state(desired)
}

// state returns the state that the next pass sees. It sends no requests.
func (c *testCaller) state(desired Desired) State {
	c.mu.Lock()
	k := c.servers[c.server.VM]
	c.mu.Unlock()
	return State{Revoked: k.revoked, Err: k.errorFor(desired), Done: k.pending(desired).empty()}
}

func TestCaller_OpensNothingBeforeRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		desired := Desired{Revoke: 6, Open: []Holder{{7, "h"}}}
		c.volume.respond = func(string) error { return errors.New("not now") }
		if state := c.pass(desired); state.Done || state.Err == nil || state.Revoked != 0 {
			t.Errorf("after a failure: %+v", state)
		}
		c.volume.wantCalls(t, "revoke 6")
		if c.Attachment(c.server.VM, "h", 7) != nil {
			t.Error("the disks are open")
		}

		c.pass(desired) // too early
		c.volume.wantCalls(t)
		time.Sleep(firstPause)
		c.volume.respond = nil
		if state := c.pass(desired); !state.Done || state.Err != nil || state.Revoked != 6 {
			t.Errorf("after the retry: %+v", state)
		}
		c.volume.wantCalls(t, "revoke 6", "open 7 h")
		c.pass(desired)
		c.volume.wantCalls(t) // everything is done
		if at := c.Attachment(c.server.VM, "h", 7); at.GetAddress() != "10.0.0.1:1" || at.GetPod() != "s" {
			t.Errorf("attached at %v", at)
		}
	})
}

// TestCaller_AttachRequiresOwnToken checks that a hypervisor attaches only with its own token.
func TestCaller_AttachRequiresOwnToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		c.pass(Desired{Open: []Holder{{7, "h"}}})
		for _, other := range []Holder{{6, "h"}, {8, "h"}, {7, "x"}} {
			if at := c.Attachment(c.server.VM, other.Pod, uint64(other.Token)); at != nil {
				t.Errorf("%+v attaches at %v", other, at)
			}
		}
		c.pass(Desired{Revoke: 7})
		if at := c.Attachment(c.server.VM, "h", 7); at != nil {
			t.Errorf("a revoked hypervisor attaches at %v", at)
		}
		c.volume.wantCalls(t, "open 7 h", "revoke 7")
		c.pass(Desired{Open: []Holder{{7, "h"}}}) // an outdated pass
		c.volume.wantCalls(t)
	})
}

func TestCaller_RefusalIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		c.volume.respond = func(string) error { return storage.ErrRevoked }
		desired := Desired{Open: []Holder{{7, "h"}}}
		c.pass(desired)
		time.Sleep(time.Hour)
		if state := c.Ensure(c.server, desired); !state.Done || !slices.Equal(state.Refused, desired.Open) {
			t.Errorf("the state is %+v", state)
		}
		synctest.Wait()
		c.volume.wantCalls(t, "open 7 h")
	})
}

// TestCaller_UnresponsiveServer checks that a server that does not respond blocks no pass, and that it gets one call at a time.
// The calls are repeated for a new process of the server.
func TestCaller_UnresponsiveServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		c.volume.respond = func(string) error { return context.DeadlineExceeded }
		began := time.Now()
		for range 3 {
			c.Ensure(c.server, Desired{Revoke: 6})
			synctest.Wait()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a pass took %v", took)
		}
		c.volume.wantCalls(t, "revoke 6")
		<-c.passes
		if took := time.Since(began); took != callTimeout {
			t.Errorf("the call took %v", took)
		}

		next := c.server
		next.Run = 2
		c.volume.respond = nil
		c.Ensure(next, Desired{Revoke: 6})
		synctest.Wait()
		c.volume.wantCalls(t, "revoke 6")
		if state := c.Ensure(next, Desired{Revoke: 6}); !state.Done || state.Revoked != 6 {
			t.Errorf("the state is %+v", state)
		}
	})
}

// TestCaller_IgnoresResponseOfEarlierProcess checks that the response of a process that has terminated does not affect the state of
// the next one.
func TestCaller_IgnoresResponseOfEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		late := make(chan struct{})
		c.volume.respond = func(string) error {
			<-late
			return nil
		}
		desired := Desired{Open: []Holder{{7, "h"}}}
		c.Ensure(c.server, desired)
		synctest.Wait()
		c.server.Run = 2
		c.volume.mu.Lock()
		c.volume.respond = func(string) error { return errors.New("not now") }
		c.volume.mu.Unlock()
		c.Ensure(c.server, desired)
		synctest.Wait()
		close(late)
		synctest.Wait()
		if at := c.Attachment(c.server.VM, "h", 7); at != nil {
			t.Errorf("it attaches at %v", at)
		}
	})
}

func TestCaller_BackoffGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		c.volume.respond = func(string) error { return errors.New("not now") }
		var pauses []time.Duration
		for range 8 {
			c.Ensure(c.server, Desired{Revoke: 1})
			synctest.Wait()
			<-c.passes
			if state := c.Ensure(c.server, Desired{}); state.Err == nil { // as while no hypervisor has the VM
				t.Error("the failure is forgotten")
			}
			c.Ensure(c.server, Desired{Revoke: 1})
			pause := <-c.passes
			pauses = append(pauses, pause)
			time.Sleep(pause)
		}
		want := []time.Duration{1, 2, 4, 8, 16, 30, 30, 30}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(pauses, want) {
			t.Errorf("the pauses are %v", pauses)
		}
	})
}

// TestCaller_NewRequestIsNotDelayed checks that a new request is sent immediately, whichever other requests have failed, and
// that it does not cause an earlier retry of a failed one.
func TestCaller_NewRequestIsNotDelayed(t *testing.T) {
	fails := func(calls ...string) func(string) error {
		return func(call string) error {
			if slices.Contains(calls, call) {
				return errors.New("not now")
			}
			return nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		c.volume.respond = fails("open 7 h")
		source := Holder{7, "h"}
		for pause := firstPause; pause < maxPause; pause *= 2 { // until the maximum is reached
			c.pass(Desired{Open: []Holder{source}})
			c.volume.wantCalls(t, "open 7 h")
			time.Sleep(pause)
		}
		c.pass(Desired{Open: []Holder{source}})
		c.volume.wantCalls(t, "open 7 h")

		target := Holder{8, "t"} // the target of a migration
		if state := c.pass(Desired{Open: []Holder{source, target}}); state.Done || state.Err == nil {
			t.Errorf("the source is not served, and the state is %+v", state)
		}
		c.volume.wantCalls(t, "open 8 t")
		if c.Attachment(c.server.VM, "t", 8) == nil {
			t.Error("the target has no disks")
		}
		if state := c.pass(Desired{Revoke: 7, Open: []Holder{target}}); !state.Done || state.Err != nil { // after the switchover
			t.Errorf("after the switchover: %+v", state)
		}
		c.volume.wantCalls(t, "revoke 7")
	})
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		c.volume.respond = fails("revoke 6", "revoke 7")
		for range 10 { // as if one pass requested both
			c.pass(Desired{Revoke: 6})
			c.pass(Desired{Revoke: 7})
		}
		c.volume.wantCalls(t, "revoke 6", "revoke 7")
		c.volume.respond = nil
		c.pass(Desired{Revoke: 5, Open: []Holder{{9, "h"}}}) // this succeeds, but the others are not retried sooner
		c.volume.wantCalls(t, "revoke 5", "open 9 h")
		c.pass(Desired{Revoke: 7})
		c.volume.wantCalls(t)
	})
}

// TestCaller_NewHolderWaitsForRevocation checks that the disks are not opened while an earlier revocation waits for its
// retry.
func TestCaller_NewHolderWaitsForRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCaller()
		c.volume.respond = func(string) error { return errors.New("not now") }
		c.pass(Desired{Revoke: 6})
		c.volume.respond = nil
		c.pass(Desired{Revoke: 6, Open: []Holder{{7, "h"}}})
		c.volume.wantCalls(t, "revoke 6")
		time.Sleep(firstPause)
		c.pass(Desired{Revoke: 6, Open: []Holder{{7, "h"}}})
		c.volume.wantCalls(t, "revoke 6", "open 7 h")
	})
}
