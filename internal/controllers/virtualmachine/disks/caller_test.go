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

// volume is a server that does as it is told.
type volume struct {
	mu     sync.Mutex
	calls  []string
	answer func(call string) error
}

func (v *volume) call(ctx context.Context, format string, args ...any) error {
	call := fmt.Sprintf(format, args...)
	v.mu.Lock()
	v.calls = append(v.calls, call)
	answer := v.answer
	v.mu.Unlock()
	if answer == nil {
		return nil
	}
	err := answer(call)
	if errors.Is(err, context.DeadlineExceeded) { // it does not answer
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

func (v *volume) took(t *testing.T, want ...string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !slices.Equal(v.calls, want) {
		t.Errorf("the server was asked %q, want %q", v.calls, want)
	}
	v.calls = nil
}

// calling is a Caller whose passes are counted.
type calling struct {
	*Caller
	volume *volume
	server Server
	passes chan time.Duration
}

func newCalling() *calling {
	c := &calling{volume: &volume{}, passes: make(chan time.Duration, 100)}
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

// pass asks, and returns what is known after the answer.
func (c *calling) pass(want Want) State {
	c.Ask(c.server, want)
	synctest.Wait()
	return c.known0(want)
}

// known0 is what the pass after an answer sees, which asks nothing anew.
func (c *calling) known0(want Want) State {
	c.mu.Lock()
	k := c.known[c.server.VM]
	c.mu.Unlock()
	return State{Revoked: k.revoked, Err: k.why(want), Done: k.rest(want).empty()}
}

func TestNothingIsOpenedBeforeTheRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		want := Want{Revoke: 6, Open: []Holder{{7, "h"}}}
		c.volume.answer = func(string) error { return errors.New("not now") }
		if state := c.pass(want); state.Done || state.Err == nil || state.Revoked != 0 {
			t.Errorf("after a failure: %+v", state)
		}
		c.volume.took(t, "revoke 6")
		if c.Attachment(c.server.VM, "h", 7) != nil {
			t.Error("the disks are open")
		}

		c.pass(want) // too early
		c.volume.took(t)
		time.Sleep(firstPause)
		c.volume.answer = nil
		if state := c.pass(want); !state.Done || state.Err != nil || state.Revoked != 6 {
			t.Errorf("in the end: %+v", state)
		}
		c.volume.took(t, "revoke 6", "open 7 h")
		c.pass(want)
		c.volume.took(t) // all is done
		if at := c.Attachment(c.server.VM, "h", 7); at.GetAddress() != "10.0.0.1:1" || at.GetPod() != "s" {
			t.Errorf("attached at %v", at)
		}
	})
}

// A hypervisor attaches with its own token only.
func TestAttachmentIsOfTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		c.pass(Want{Open: []Holder{{7, "h"}}})
		for _, other := range []Holder{{6, "h"}, {8, "h"}, {7, "x"}} {
			if at := c.Attachment(c.server.VM, other.Pod, uint64(other.Token)); at != nil {
				t.Errorf("%+v attaches at %v", other, at)
			}
		}
		c.pass(Want{Revoke: 7})
		if at := c.Attachment(c.server.VM, "h", 7); at != nil {
			t.Errorf("who is revoked attaches at %v", at)
		}
		c.volume.took(t, "open 7 h", "revoke 7")
		c.pass(Want{Open: []Holder{{7, "h"}}}) // an old pass
		c.volume.took(t)
	})
}

func TestRefusalIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		c.volume.answer = func(string) error { return storage.ErrRevoked }
		want := Want{Open: []Holder{{7, "h"}}}
		c.pass(want)
		time.Sleep(time.Hour)
		if state := c.Ask(c.server, want); !state.Done || !slices.Equal(state.Refused, want.Open) {
			t.Errorf("the state is %+v", state)
		}
		synctest.Wait()
		c.volume.took(t, "open 7 h")
	})
}

// A server that does not answer holds up nobody, and is asked one thing at a time. What it did in the end, another process of
// it may not have done.
func TestServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		c.volume.answer = func(string) error { return context.DeadlineExceeded }
		began := time.Now()
		for range 3 {
			c.Ask(c.server, Want{Revoke: 6})
			synctest.Wait()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a pass took %v", took)
		}
		c.volume.took(t, "revoke 6")
		<-c.passes
		if took := time.Since(began); took != callLimit {
			t.Errorf("the call took %v", took)
		}

		next := c.server
		next.Run = 2
		c.volume.answer = nil
		c.Ask(next, Want{Revoke: 6})
		synctest.Wait()
		c.volume.took(t, "revoke 6")
		if state := c.Ask(next, Want{Revoke: 6}); !state.Done || state.Revoked != 6 {
			t.Errorf("the state is %+v", state)
		}
	})
}

// An answer of a process that has ended says nothing of the next one.
func TestAnswerOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		late := make(chan struct{})
		c.volume.answer = func(string) error {
			<-late
			return nil
		}
		want := Want{Open: []Holder{{7, "h"}}}
		c.Ask(c.server, want)
		synctest.Wait()
		c.server.Run = 2
		c.volume.mu.Lock()
		c.volume.answer = func(string) error { return errors.New("not now") }
		c.volume.mu.Unlock()
		c.Ask(c.server, want)
		synctest.Wait()
		close(late)
		synctest.Wait()
		if at := c.Attachment(c.server.VM, "h", 7); at != nil {
			t.Errorf("it attaches at %v", at)
		}
	})
}

func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		c.volume.answer = func(string) error { return errors.New("not now") }
		var pauses []time.Duration
		for range 8 {
			c.Ask(c.server, Want{Revoke: 1})
			synctest.Wait()
			<-c.passes
			if state := c.Ask(c.server, Want{}); state.Err == nil { // as while nobody has the VM
				t.Error("the failure is forgotten")
			}
			c.Ask(c.server, Want{Revoke: 1})
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

// A request that is new is asked for at once, whatever else has failed; one that failed is not asked for more often for that.
func TestNewWishDoesNotWait(t *testing.T) {
	fails := func(calls ...string) func(string) error {
		return func(call string) error {
			if slices.Contains(calls, call) {
				return errors.New("not now")
			}
			return nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		c.volume.answer = fails("open 7 h")
		source := Holder{7, "h"}
		for pause := firstPause; pause < maxPause; pause *= 2 { // until the pause is at its longest
			c.pass(Want{Open: []Holder{source}})
			c.volume.took(t, "open 7 h")
			time.Sleep(pause)
		}
		c.pass(Want{Open: []Holder{source}})
		c.volume.took(t, "open 7 h")

		target := Holder{8, "t"} // of a migration
		if state := c.pass(Want{Open: []Holder{source, target}}); state.Done || state.Err == nil {
			t.Errorf("the source is not served, and the state is %+v", state)
		}
		c.volume.took(t, "open 8 t")
		if c.Attachment(c.server.VM, "t", 8) == nil {
			t.Error("the target has no disks")
		}
		if state := c.pass(Want{Revoke: 7, Open: []Holder{target}}); !state.Done || state.Err != nil { // after the switchover
			t.Errorf("after the switchover: %+v", state)
		}
		c.volume.took(t, "revoke 7")
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		c.volume.answer = fails("revoke 6", "revoke 7")
		for range 10 { // as by one pass that asks for both
			c.pass(Want{Revoke: 6})
			c.pass(Want{Revoke: 7})
		}
		c.volume.took(t, "revoke 6", "revoke 7")
		c.volume.answer = nil
		c.pass(Want{Revoke: 5, Open: []Holder{{9, "h"}}}) // done, and no reason to try the others sooner
		c.volume.took(t, "revoke 5", "open 9 h")
		c.pass(Want{Revoke: 7})
		c.volume.took(t)
	})
}

// Nothing is opened while what is to be revoked before waits for its repetition.
func TestNewHolderWaitsForTheRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCalling()
		c.volume.answer = func(string) error { return errors.New("not now") }
		c.pass(Want{Revoke: 6})
		c.volume.answer = nil
		c.pass(Want{Revoke: 6, Open: []Holder{{7, "h"}}})
		c.volume.took(t, "revoke 6")
		time.Sleep(firstPause)
		c.pass(Want{Revoke: 6, Open: []Holder{{7, "h"}}})
		c.volume.took(t, "revoke 6", "open 7 h")
	})
}
