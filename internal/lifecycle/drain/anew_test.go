package drain

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestDecided checks that only the response of a working API server counts as its decision.
func TestDecided(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	cases := map[string]struct {
		err  error
		want bool
	}{
		"forbidden":         {apierrors.NewForbidden(pods, "a", errors.New("no")), true},
		"internal":          {apierrors.NewInternalError(errors.New("more than one budget")), true},
		"invalid":           {apierrors.NewBadRequest("no"), true},
		"conflict":          {apierrors.NewConflict(pods, "a", errors.New("changed")), true},
		"no error":          {nil, false},
		"no response":       {&net.OpError{Op: "dial", Err: errors.New("connection refused")}, false},
		"given up":          {context.DeadlineExceeded, false},
		"timeout":           {apierrors.NewTimeoutError("etcd", 1), false},
		"server timeout":    {apierrors.NewServerTimeout(pods, "create", 1), false},
		"unavailable":       {apierrors.NewServiceUnavailable("starting"), false},
		"too many requests": {apierrors.NewTooManyRequestsError("later"), false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := decided(tc.err); got != tc.want {
				t.Errorf("decided %v, want %v", got, tc.want)
			}
		})
	}
}

// TestEviction_WithoutResponseIsNoAttempt checks that an unavailable API server does not lead to the forced deletion of a Pod
// with a volume.
func TestEviction_WithoutResponseIsNoAttempt(t *testing.T) {
	for name, tc := range map[string]struct {
		failure error
		want    string
	}{
		"no response": {errors.New("connection refused"), "a"},
		"refused":     {apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("no")), "force:a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t).pod("a", 0, "v")
			s.rules.retries = 2
			for range 2 {
				s.pass(responses{"a": "error"}, "a")
				s.l.pods["a"].failure = tc.failure
				s.later(evictionInterval)
			}
			s.pass(responses{"a": "error"}, "a")
			s.l.pods["a"].failure = tc.failure
			s.later(evictionInterval).pass(nil, tc.want)
		})
	}
}

// TestEviction_AttemptsRestart checks that attempts from before an outage do not count after it.
func TestEviction_AttemptsRestart(t *testing.T) {
	s := newStory(t).pod("a", 0)
	s.rules.retries = 2
	s.pass(responses{"a": "refused"}, "a")
	s.budget("a", refusing)
	for range 2 {
		s.later(evictionInterval).pass(responses{"a": "refused"}, "a")
	}
	s.later(time.Hour)
	s.rules.since = s.facts.now // the end of the outage
	for range 2 {
		s.pass(responses{"a": "refused"}, "a")
		s.later(evictionInterval)
	}
	s.pass(nil, "force:a")
}

// TestVolumes_WaitRestarts checks that waits for volumes start over after an outage, because no volumes
// could be detached or attached during it.
func TestVolumes_WaitRestarts(t *testing.T) {
	const away = time.Hour
	t.Run("detach", func(t *testing.T) {
		s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
		s.pass(responses{"a": "ok"}, "a")
		s.gone("a").later(away)
		s.rules.since = s.facts.now
		s.later(30*time.Second + s.rules.detach - 1).pass(nil)
		s.later(1).pass(nil, "b")
	})
	t.Run("reattach", func(t *testing.T) {
		s := newStory(t).pod("a", 5, "v1").pod("b", 1, "v2")
		s.pass(responses{"a": "ok"}, "a")
		s.gone("a").detach("v1").later(time.Second).pass(nil)
		s.later(away)
		s.rules.since = s.facts.now
		s.later(s.rules.reattach - 1).pass(nil)
		s.later(1).pass(nil, "b")
	})
}
