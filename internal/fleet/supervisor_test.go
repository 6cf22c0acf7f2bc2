package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/internal/manager"
)

// log records what a supervisor does.
type log struct {
	mu      sync.Mutex
	began   map[string][]time.Time
	running map[string]int
	reasons map[string][]string
}

// newTestSupervisor returns a supervisor whose managers run until they are stopped, or as behave does.
func newTestSupervisor(ctx context.Context, t *testing.T, behave func(ctx context.Context, name string) error) (*supervisor, *log) {
	l := &log{began: map[string][]time.Time{}, running: map[string]int{}, reasons: map[string][]string{}}
	s := newSupervisor(ctx)
	t.Cleanup(s.running.Wait) // the context of the test is canceled before
	s.run = func(ctx context.Context, of member, progress func(manager.State)) error {
		name := of.namespace.Name
		l.mu.Lock()
		l.began[name] = append(l.began[name], time.Now())
		l.running[name]++
		if l.running[name] > 1 {
			panic("two managers of one namespace")
		}
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.running[name]--
		}()
		progress(manager.StateServing)
		return behave(ctx, name)
	}
	s.report = func(of member, found *problem) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reasons[of.namespace.Name] = append(l.reasons[of.namespace.Name], found.reason)
	}
	return s, l
}

func untilStopped(ctx context.Context, _ string) error {
	<-ctx.Done()
	return nil
}

// members returns members with a key.
func membersOf(key string, names ...string) map[string]member {
	members := map[string]member{}
	for _, name := range names {
		namespace := namespaceNamed(name, nil)
		members[name] = member{namespace: &namespace, key: key}
	}
	return members
}

func TestSupervisor_RestartsOnlyChangedMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newTestSupervisor(t.Context(), t, func(ctx context.Context, _ string) error {
			<-ctx.Done()
			time.Sleep(time.Second) // the leases are released
			return nil
		})
		s.set(membersOf("1", "a", "b"))
		time.Sleep(time.Minute)
		changed := membersOf("1", "a", "b")
		changed["b"] = membersOf("2", "b")["b"]
		s.set(changed)
		time.Sleep(time.Millisecond)
		if state := s.states()["b"]; state != stateStopping {
			t.Errorf("b is %s", state)
		}
		time.Sleep(time.Minute)
		if len(l.began["a"]) != 1 || len(l.began["b"]) != 2 {
			t.Errorf("starts: %v", l.began)
		}
		s.set(nil)
		time.Sleep(time.Minute)
		if len(s.states()) != 0 || l.running["a"]+l.running["b"] != 0 {
			t.Errorf("still running: %v", s.states())
		}
		s.set(membersOf("1", "a"))
		s.set(nil)
		s.set(membersOf("1", "a")) // returns while its manager stops
		time.Sleep(time.Minute)
		if s.states()["a"] != manager.StateServing {
			t.Errorf("a is %s", s.states()["a"])
		}
	})
}

// TestSupervisor_FailuresAreContained checks that failures and panics of one manager are retried with growing pauses, and do
// not affect another.
func TestSupervisor_FailuresAreContained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newTestSupervisor(t.Context(), t, func(ctx context.Context, name string) error {
			switch name {
			case "panics":
				panic("bug")
			case "fails":
				return errors.New("failure")
			}
			return untilStopped(ctx, name)
		})
		s.set(membersOf("1", "panics", "fails", "works"))
		time.Sleep(time.Hour)
		for name, reason := range map[string]string{"panics": ReasonPanicked, "fails": ReasonFailed} {
			began := l.began[name]
			if count := len(began); count < 15 || count > 25 {
				t.Errorf("%s was started %d times in an hour", name, count)
			}
			if first, last := began[1].Sub(began[0]), began[len(began)-1].Sub(began[len(began)-2]); first != firstPause || last != lastPause {
				t.Errorf("%s: pauses from %v to %v", name, first, last)
			}
			if l.reasons[name][0] != reason {
				t.Errorf("%s: reasons %v", name, l.reasons[name])
			}
		}
		if len(l.began["works"]) != 1 || len(l.reasons["works"]) != 0 {
			t.Errorf("the other manager was started at %v, problems %v", l.began["works"], l.reasons["works"])
		}
		changed := membersOf("2", "fails", "works")
		s.set(changed)
		time.Sleep(time.Millisecond)
		if last := l.began["fails"][len(l.began["fails"])-1]; time.Since(last) > time.Second {
			t.Errorf("a changed member waits for its pause")
		}
	})
}

// TestSupervisor_ReportsProblemsOfObjects checks that a member with a problem is not started, and not retried either.
func TestSupervisor_ReportsProblemsOfObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newTestSupervisor(t.Context(), t, untilStopped)
		wrong := membersOf("1", "a")
		refused := wrong["a"]
		refused.problem = problemf(ReasonSecretMissing, "missing")
		wrong["a"] = refused
		s.set(wrong)
		time.Sleep(time.Hour)
		if s.states()["a"] != stateRefused || len(l.began["a"]) != 0 || len(l.reasons["a"]) != 1 {
			t.Errorf("a is %s, starts %v, problems %v", s.states()["a"], l.began["a"], l.reasons["a"])
		}
		s.set(membersOf("2", "a"))
		time.Sleep(time.Millisecond)
		if s.states()["a"] != manager.StateServing {
			t.Errorf("a is %s", s.states()["a"])
		}
	})
}

// TestSupervisor_PacesStarts checks that a thousand namespaces that appear together are started over time.
func TestSupervisor_PacesStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s, l := newTestSupervisor(ctx, t, untilStopped)
		var names []string
		for i := range 1000 {
			names = append(names, fmt.Sprint(i))
		}
		s.set(membersOf("1", names...))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		l.mu.Lock()
		count := len(l.began)
		l.mu.Unlock()
		if count < 200 || count > 250 {
			t.Errorf("%d managers were started in 10 s", count)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(l.began) != 1000 {
			t.Errorf("%d managers were started", len(l.began))
		}
		cancel()
		if left := s.wait(context.Background()); len(left) > 0 {
			t.Errorf("%d managers are left", len(left))
		}
	})
}

// TestSupervisor_WaitIsLimited checks that a manager that does not stop is named.
func TestSupervisor_WaitIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		s, _ := newTestSupervisor(ctx, t, func(context.Context, string) error { <-release; return nil })
		s.set(membersOf("1", "a"))
		synctest.Wait()
		cancel()
		limited, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		if left := s.wait(limited); len(left) != 1 || left[0] != "a" {
			t.Errorf("left: %v", left)
		}
		close(release)
		synctest.Wait()
	})
}
