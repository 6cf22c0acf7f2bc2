package controlplane

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
)

func TestBackoff(t *testing.T) {
	tests := map[string]struct {
		reason  string
		uptimes []time.Duration
		want    []time.Duration
	}{
		"Doubles": {
			"a child that cannot live is tried ever less often, at least twice a minute",
			make([]time.Duration, 7),
			[]time.Duration{1e9, 2e9, 4e9, 8e9, 16e9, 30e9, 30e9},
		},
		"BeginsAnew": {
			"a child that was up for a minute was all right",
			[]time.Duration{0, 0, time.Minute, 59 * time.Second},
			[]time.Duration{1e9, 2e9, 1e9, 2e9},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var b backoff
			var got []time.Duration
			for _, uptime := range test.uptimes {
				got = append(got, b.after(uptime))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

// fakeChild ends after its lifetime, or when it is told to.
type fakeChild struct {
	stubborn bool // ends for nothing but SIGKILL
	once     sync.Once
	ended    chan struct{}
	signals  chan os.Signal
}

func (f *fakeChild) Signal(signal os.Signal) error {
	select {
	case <-f.ended:
		return os.ErrProcessDone
	default:
	}
	f.signals <- signal
	if signal == syscall.SIGKILL || !f.stubborn {
		f.end()
	}
	return nil
}
func (f *fakeChild) Ended() <-chan struct{} { return f.ended }
func (f *fakeChild) Status() string         { return "exit status 7" }
func (f *fakeChild) end()                   { f.once.Do(func() { close(f.ended) }) }

// stage is a component with fake children.
type stage struct {
	*component
	began  time.Time
	mu     sync.Mutex
	starts []time.Duration // since began
	child  *fakeChild
}

func newStage(lifetime time.Duration, stubborn bool) *stage {
	s := &stage{began: time.Now()}
	s.component = &component{
		name: "fake", grace: 3 * time.Second, log: logr.Discard(), lastLines: func() string { return "last words" },
		launch: func() (child, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.starts = append(s.starts, time.Since(s.began))
			s.child = &fakeChild{stubborn: stubborn, ended: make(chan struct{}), signals: make(chan os.Signal, 9)}
			if lifetime > 0 {
				time.AfterFunc(lifetime, s.child.end)
			}
			return s.child, nil
		},
		probe: func(context.Context) error { return errors.New("not yet") },
	}
	return s
}

func (s *stage) startTimes() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.starts...)
}

func TestChildIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(10*time.Second, false)
		s.start()
		s.start() // once is enough
		time.Sleep(time.Minute)
		s.stop(t.Context())
		const second = time.Second
		want := []time.Duration{0, 11 * second, 23 * second, 37 * second, 55 * second}
		if diff := cmp.Diff(want, s.startTimes()); diff != "" {
			t.Errorf("starts (-want +got):\n%s", diff)
		}
		time.Sleep(time.Hour)
		if count := len(s.startTimes()); count != len(want) {
			t.Errorf("want no start after stop, got %d", count-len(want))
		}
	})
}

func TestChildThatCannotBeStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		problem := errors.New("no such file")
		s := newStage(0, false)
		s.launch = func() (child, error) { return nil, problem }
		s.start()
		defer s.stop(t.Context())
		if err := s.awaitReady(t.Context(), true); !errors.Is(err, problem) {
			t.Errorf("want the start's error, got %v", err)
		}
	})
}

func TestStopIsOrderlyAtFirst(t *testing.T) {
	tests := map[string]struct {
		reason   string
		stubborn bool
		patience time.Duration // of the caller
		want     time.Duration
		signals  []os.Signal
	}{
		"Obeys":      {"a child that ends when asked to costs no time", false, time.Hour, 0, []os.Signal{syscall.SIGTERM}},
		"Stubborn":   {"one that does not is killed after its grace", true, time.Hour, 3 * time.Second, []os.Signal{syscall.SIGTERM, syscall.SIGKILL}},
		"Impatience": {"or earlier when the caller gives up", true, time.Second, time.Second, []os.Signal{syscall.SIGTERM, syscall.SIGKILL}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(0, test.stubborn)
				s.start()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), test.patience)
				defer cancel()
				began := time.Now()
				s.stop(ctx)
				if took := time.Since(began); took != test.want {
					t.Errorf("%s: took %v instead of %v", test.reason, took, test.want)
				}
				close(s.child.signals)
				var got []os.Signal
				for signal := range s.child.signals {
					got = append(got, signal)
				}
				if diff := cmp.Diff(test.signals, got); diff != "" {
					t.Errorf("%s: signals (-want +got):\n%s", test.reason, diff)
				}
			})
		})
	}
}

func TestStopDuringTheWaitForARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(time.Second, false)
		s.start()
		time.Sleep(1500 * time.Millisecond) // it ended; the next start is due in half a second
		if err := s.killChild(); !errors.Is(err, errNotRunning) {
			t.Errorf("want nothing to kill, got %v", err)
		}
		began := time.Now()
		s.stop(t.Context())
		if took := time.Since(began); took != 0 || len(s.startTimes()) != 1 {
			t.Errorf("stop took %v, %d starts", took, len(s.startTimes()))
		}
		s.start()
		synctest.Wait()
		if len(s.startTimes()) != 2 {
			t.Error("want a new start after a stop to count at once")
		}
		s.stop(t.Context())
	})
}

func TestKilledChildIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(0, true)
		s.start()
		defer s.stop(t.Context())
		synctest.Wait()
		must(t, s.killChild())
		time.Sleep(firstDelay)
		synctest.Wait()
		if count := len(s.startTimes()); count != 2 {
			t.Errorf("want a second child, got %d in all", count)
		}
	})
}

func TestAwaitReady(t *testing.T) {
	tests := map[string]struct {
		reason   string
		lifetime time.Duration
		readyAt  time.Duration
		first    bool
		want     error // or one that is none of the others
		after    time.Duration
	}{
		"Ready":   {"asked every 50 ms", time.Hour, 120 * time.Millisecond, true, nil, 150 * time.Millisecond},
		"Dies":    {"a first child that ends is no reason to wait on", time.Second, time.Hour, true, errAny, time.Second},
		"Reborn":  {"but a later one is", time.Second, 5 * time.Second, false, nil, 5 * time.Second},
		"TooLate": {"the context says for how long", time.Hour, time.Hour, true, context.DeadlineExceeded, time.Minute},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(test.lifetime, false)
				s.probe = func(context.Context) error {
					if time.Since(s.began) < test.readyAt {
						return errors.New("not yet")
					}
					return nil
				}
				s.start()
				defer s.stop(context.Background())
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := s.awaitReady(ctx, test.first)
				if took := time.Since(s.began); took != test.after {
					t.Errorf("%s: took %v instead of %v", test.reason, took, test.after)
				}
				if test.want == errAny && err == nil || test.want != errAny && !errors.Is(err, test.want) {
					t.Errorf("%s: want %v, got %v", test.reason, test.want, err)
				}
			})
		})
	}
}

var errAny = errors.New("any error")
