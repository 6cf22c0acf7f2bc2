package bootstrap_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
)

func keep(t *testing.T, tokens *bootstrap.Tokens) time.Duration {
	t.Helper()
	next, err := tokens.Keep(t.Context(), machine, valid)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// TestKeep checks that a token is renewed in time, by the process that issued it or by the next one, and
// remains the same token that the VM has.
func TestKeep(t *testing.T) {
	for name, restarted := range map[string]bool{"same process": false, "next process": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			tokens := c.tokens()
			first := issue(t, tokens)
			begin := c.only()
			if restarted {
				tokens = c.tokens()
			}
			c.requests = nil
			if got := keep(t, tokens); got != valid/2 {
				t.Errorf("next call in %v, want %v", got, valid/2)
			}
			if restarted != slices.Contains(c.requests, "get") || slices.Contains(c.requests, "delete") {
				t.Errorf("requests %v for a token that is valid", c.requests)
			}
			for range 5 {
				c.clock.SetTime(c.clock.Now().Add(valid / 2))
				c.requests = nil
				if got := keep(t, tokens); got != valid/2 {
					t.Errorf("next call in %v", got)
				}
				if !slices.Equal(c.requests, []string{"delete", "create"}) {
					t.Errorf("requests %v, want the token recreated", c.requests)
				}
			}
			kept := c.only()
			if kept.UID == begin.UID || string(kept.Data["token-id"])+"."+string(kept.Data["token-secret"]) != first {
				t.Error("the VM has another token")
			}
			if got := string(kept.Data["expiration"]); got != c.clock.Now().Add(valid).Format(time.RFC3339) {
				t.Errorf("it expires at %s, now it is %v", got, c.clock.Now())
			}
			revoke(t, tokens)
			if n := len(c.all()); n != 0 {
				t.Errorf("%d tokens remain after the join", n)
			}
		})
	}
}

// TestKeep_RestoresDeletedSecret checks that a token is recreated that the token cleaner has just deleted.
func TestKeep_RestoresDeletedSecret(t *testing.T) {
	c := newCluster(t)
	tokens := c.tokens()
	issue(t, tokens)
	before := c.only()
	c.clock.SetTime(c.clock.Now().Add(2 * valid))
	c.remove(before)
	keep(t, tokens)
	if got := c.only(); string(got.Data["token-secret"]) != string(before.Data["token-secret"]) {
		t.Error("it was created with another secret")
	}
}

// TestKeep_WithoutToken checks that a machine without a token is looked up only once.
func TestKeep_WithoutToken(t *testing.T) {
	c := newCluster(t)
	tokens := c.tokens()
	for range 3 {
		if got := keep(t, tokens); got != 0 {
			t.Errorf("next call in %v", got)
		}
	}
	if asked := len(c.requests); asked == 0 || asked > 4 {
		t.Errorf("%d requests", asked)
	}
	issue(t, tokens)
	if got := keep(t, tokens); got != valid/2 {
		t.Errorf("a token that came later is not kept: %v", got)
	}
}

// TestKeep_RenewedToken checks that a token that another process has renewed is used as it is.
func TestKeep_RenewedToken(t *testing.T) {
	c := newCluster(t)
	slow, fast := c.tokens(), c.tokens()
	issue(t, slow)
	c.clock.SetTime(c.clock.Now().Add(valid/2 + time.Second))
	issue(t, fast)
	renewed := c.only()
	if _, err := slow.Keep(t.Context(), machine, valid); !apierrors.IsConflict(err) {
		t.Fatalf("err %v, want a conflict", err)
	}
	if got := keep(t, slow); got != valid/2 || c.only().UID != renewed.UID {
		t.Errorf("next call in %v; renewed again: %v", got, c.only().UID != renewed.UID)
	}
}

// TestKeep_RetriesFailedRenewal checks that a failed renewal is retried, even if it failed between deletion and creation.
func TestKeep_RetriesFailedRenewal(t *testing.T) {
	for _, verb := range []string{"get", "delete", "create"} {
		t.Run(verb, func(t *testing.T) {
			c := newCluster(t)
			first := issue(t, c.tokens())
			tokens := c.tokens()
			c.clock.SetTime(c.clock.Now().Add(valid))
			away := apierrors.NewServiceUnavailable("away")
			c.fail[verb] = away
			if _, err := tokens.Keep(t.Context(), machine, valid); !errors.Is(err, away) {
				t.Fatalf("err %v", err)
			}
			delete(c.fail, verb)
			keep(t, tokens)
			if got := c.only(); string(got.Data["token-id"])+"."+string(got.Data["token-secret"]) != first {
				t.Error("the VM has another token")
			}
		})
	}
}
