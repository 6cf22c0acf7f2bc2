package hypervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

// accepting is a guest that accepts connections.
type accepting struct{ service.Guest }

// DialGuest implements service.Guest.
func (accepting) DialGuest(context.Context, uint16) (dialer.Conn, error) { return nil, nil }

// TestClientsGuest_NewConnectionWaits checks that new connections wait while the guest is stopped for a migration, for a
// limited time, and not for a guest that has never run.
func TestClientsGuest_NewConnectionWaits(t *testing.T) {
	for name, test := range map[string]struct {
		begin  func(*clientsGuest)
		change func(*clientsGuest)
		want   time.Duration
		err    error
	}{
		"runs":          {begin: func(g *clientsGuest) { g.run(accepting{}) }},
		"has not run":   {begin: func(*clientsGuest) {}, err: errNoGuest},
		"arrives":       {begin: (*clientsGuest).wait, change: func(g *clientsGuest) { g.run(accepting{}) }, want: time.Second},
		"continues":     {begin: stopAfterRun, change: func(g *clientsGuest) { g.run(accepting{}) }, want: time.Second},
		"moves":         {begin: stopAfterRun, change: (*clientsGuest).resume, want: time.Second},
		"stops again":   {begin: stopAfterRun, change: func(g *clientsGuest) { g.resume(); g.wait() }, want: dialLimit, err: context.DeadlineExceeded},
		"never returns": {begin: stopAfterRun, want: dialLimit, err: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, begun := &clientsGuest{}, time.Now()
				test.begin(g)
				if test.change != nil {
					time.AfterFunc(time.Second, func() { test.change(g) })
				}
				if _, err := g.DialGuest(t.Context(), 80); !errors.Is(err, test.err) {
					t.Errorf("got %v, want %v", err, test.err)
				}
				if got := time.Since(begun); got != test.want {
					t.Errorf("the connection waited %s, want %s", got, test.want)
				}
				time.Sleep(time.Second)
			})
		})
	}
}

// stopAfterRun makes a guest run, and then stops it.
func stopAfterRun(g *clientsGuest) {
	g.run(accepting{})
	g.wait()
}
