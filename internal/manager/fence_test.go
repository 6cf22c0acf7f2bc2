package manager

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// heldLease is a lease that no other process wants.
type heldLease struct{ resourcelock.Interface }

func (heldLease) Create(context.Context, resourcelock.LeaderElectionRecord) error { return nil }
func (heldLease) Update(context.Context, resourcelock.LeaderElectionRecord) error { return nil }
func (heldLease) Identity() string                                                { return "self" }
func (heldLease) Describe() string                                                { return "lease" }

// closedBody is an empty body that records whether it was closed.
type closedBody struct{ closed bool }

func (*closedBody) Read([]byte) (int, error) { return 0, io.EOF }
func (b *closedBody) Close() error           { b.closed = true; return nil }

// TestLock_RefusesWritesWithExpiredLeases checks that a process that was suspended for longer than its renew deadline writes
// nothing before it has renewed its leases, but can read.
func TestLock_RefusesWritesWithExpiredLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		election := Election{RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
		l := newLockFrom([]resourcelock.Interface{heldLease{}}, election, func() bool { return true }, logr.Discard())
		sent := 0
		config := l.fence(&rest.Config{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			sent++
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})})
		transport, err := rest.TransportFor(config)
		if err != nil {
			t.Fatal(err)
		}
		want := func(refused bool) {
			t.Helper()
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete} {
				request, err := http.NewRequestWithContext(t.Context(), method, "https://seed", nil)
				if err != nil {
					t.Fatal(err)
				}
				before, body := sent, &closedBody{}
				request.Body = body
				_, err = transport.RoundTrip(request)
				if errors.Is(err, errLeasesExpired) && !body.closed {
					t.Errorf("the body of a refused %s was not closed", method)
				}
				if refused := refused && method != http.MethodGet; refused != errors.Is(err, errLeasesExpired) || refused != (sent == before) {
					t.Errorf("%s returned %v, and %d requests were sent; want refused %t", method, err, sent-before, refused)
				}
			}
			if l.expired() != refused {
				t.Errorf("expired is %t", !refused)
			}
		}
		record := resourcelock.LeaderElectionRecord{HolderIdentity: "self"}
		time.Sleep(time.Hour)
		want(false) // a standby process has other writes, such as certificates of webhooks
		if err := l.Create(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		time.Sleep(election.RenewDeadline)
		want(false)
		time.Sleep(time.Millisecond)
		want(true)
		if err := l.Update(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		want(false)
	})
}
