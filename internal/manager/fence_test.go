package manager

import (
	"context"
	"errors"
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
				before := sent
				_, err = transport.RoundTrip(request)
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
