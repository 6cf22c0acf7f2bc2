package supervisor

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

	"github.com/millwright-dev/millwright/internal/local/process"
)

// fakeProcess exits after its lifetime, or on a signal.
type fakeProcess struct {
	stubborn bool // exits only on SIGKILL
	once     sync.Once
	ended    chan struct{}
	signals  chan os.Signal
}

func (f *fakeProcess) signal(signal os.Signal) {
	select {
	case <-f.ended:
		return
	default:
	}
	f.signals <- signal
	if signal == syscall.SIGKILL || !f.stubborn {
		f.end()
	}
}

func (f *fakeProcess) Terminate()                  { f.signal(syscall.SIGTERM) }
func (f *fakeProcess) Kill()                       { f.signal(syscall.SIGKILL) }
func (f *fakeProcess) Ended() <-chan struct{}      { return f.ended }
func (f *fakeProcess) Exit() (process.Exit, error) { return process.Exit{Known: true, Code: 7}, nil }
func (f *fakeProcess) end()                        { f.once.Do(func() { close(f.ended) }) }

// stage is a child with fake processes.
type stage struct {
	*Child
	began  time.Time
	mu     sync.Mutex
	starts []time.Duration // relative to the beginning
	last   *fakeProcess
}

func newStage(lifetime time.Duration, stubborn bool) *stage {
	s := &stage{began: time.Now()}
	s.Child = &Child{
		Program: Program{
			Name: "fake", Grace: 3 * time.Second, Log: logr.Discard(),
			Probe: func(context.Context) error { return errors.New("not yet") },
		},
		launch: func() (running, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.starts = append(s.starts, time.Since(s.began))
			s.last = &fakeProcess{stubborn: stubborn, ended: make(chan struct{}), signals: make(chan os.Signal, 9)}
			if lifetime > 0 {
				time.AfterFunc(lifetime, s.last.end)
			}
			return s.last, nil
		},
	}
	return s
}

func (s *stage) startTimes() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.starts...)
}

func TestChild_IsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(10*time.Second, false)
		s.Start()
		s.Start() // calling it once is enough
		time.Sleep(time.Minute)
		s.Stop(t.Context())
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

// TestChild_RestartDelays checks that the delays grow while a child keeps failing, up to 30 seconds, and that they are
// reset after the child has run for a minute.
func TestChild_RestartDelays(t *testing.T) {
	for name, test := range map[string]struct {
		lifetimes []time.Duration
		want      []time.Duration
	}{
		"Doubles":    {make([]time.Duration, 8), []time.Duration{1e9, 2e9, 4e9, 8e9, 16e9, 30e9, 30e9}},
		"BeginsAnew": {[]time.Duration{0, 0, time.Minute, 59 * time.Second, 0}, []time.Duration{1e9, 2e9, 1e9, 2e9}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(0, false)
				var ended time.Time
				var got []time.Duration
				s.launch = func() (running, error) {
					if !ended.IsZero() {
						got = append(got, time.Since(ended))
					}
					lifetime := time.Hour
					if len(test.lifetimes) > 0 {
						lifetime, test.lifetimes = test.lifetimes[0], test.lifetimes[1:]
					}
					p := &fakeProcess{ended: make(chan struct{}), signals: make(chan os.Signal, 9)}
					ended = time.Now().Add(lifetime)
					time.AfterFunc(lifetime, p.end)
					return p, nil
				}
				s.Start()
				time.Sleep(10 * time.Minute)
				must(t, s.Stop(t.Context()))
				if len(got) > len(test.want) {
					got = got[:len(test.want)]
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("pauses (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestChild_CannotBeStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		problem := errors.New("no such file")
		s := newStage(0, false)
		s.launch = func() (running, error) { return nil, problem }
		s.Start()
		defer s.Stop(t.Context())
		if err := s.AwaitReady(t.Context(), true); !errors.Is(err, problem) {
			t.Errorf("want the start's error, got %v", err)
		}
	})
}

func TestChild_StopIsGracefulFirst(t *testing.T) {
	tests := map[string]struct {
		reason      string
		stubborn    bool
		waitTimeout time.Duration // timeout of the caller
		want        time.Duration
		signals     []os.Signal
	}{
		"Obeys":      {"a child that exits on SIGTERM costs no time", false, time.Hour, 0, []os.Signal{syscall.SIGTERM}},
		"Stubborn":   {"a child that does not exit is killed after its grace period", true, time.Hour, 3 * time.Second, []os.Signal{syscall.SIGTERM, syscall.SIGKILL}},
		"Impatience": {"a child is killed earlier if the caller's timeout expires", true, time.Second, time.Second, []os.Signal{syscall.SIGTERM, syscall.SIGKILL}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(0, test.stubborn)
				s.Start()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), test.waitTimeout)
				defer cancel()
				began := time.Now()
				s.Stop(ctx)
				if took := time.Since(began); took != test.want {
					t.Errorf("%s: took %v instead of %v", test.reason, took, test.want)
				}
				close(s.last.signals)
				var got []os.Signal
				for signal := range s.last.signals {
					got = append(got, signal)
				}
				if diff := cmp.Diff(test.signals, got); diff != "" {
					t.Errorf("%s: signals (-want +got):\n%s", test.reason, diff)
				}
			})
		})
	}
}

func TestChild_StopDuringRestartDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(time.Second, false)
		s.Start()
		time.Sleep(1500 * time.Millisecond) // it has exited, and the next start is in half a second
		if err := s.Kill(); !errors.Is(err, ErrNotRunning) {
			t.Errorf("want nothing to kill, got %v", err)
		}
		began := time.Now()
		s.Stop(t.Context())
		if took := time.Since(began); took != 0 || len(s.startTimes()) != 1 {
			t.Errorf("stop took %v, %d starts", took, len(s.startTimes()))
		}
		s.Start()
		synctest.Wait()
		if len(s.startTimes()) != 2 {
			t.Error("want a new start after a stop to count immediately")
		}
		s.Stop(t.Context())
	})
}

func TestChild_IsRestartedAfterKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(0, true)
		s.Start()
		defer s.Stop(t.Context())
		synctest.Wait()
		must(t, s.Kill())
		time.Sleep(restartDelays.Duration)
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
		probing  time.Duration // duration of a probe
		first    bool
		want     error // or an error that is none of the others
		after    time.Duration
	}{
		"Ready":   {"probed every 50 ms", time.Hour, 120 * time.Millisecond, 0, true, nil, 150 * time.Millisecond},
		"Slow":    {"slow probes use a fifth of the time", time.Hour, 120 * time.Millisecond, 40 * time.Millisecond, true, nil, 240 * time.Millisecond},
		"Waits":   {"a probe that waited does not delay the next one", time.Hour, 120 * time.Millisecond, 2 * time.Second, true, nil, 4250 * time.Millisecond},
		"Dies":    {"AwaitReady fails if the first child exits", time.Second, time.Hour, 0, true, errAny, time.Second},
		"Reborn":  {"AwaitReady waits for another child if a later one exits", time.Second, 5 * time.Second, 0, false, nil, 5 * time.Second},
		"TooLate": {"AwaitReady waits until the context expires", time.Hour, time.Hour, 0, true, context.DeadlineExceeded, time.Minute},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(test.lifetime, false)
				s.Probe = func(context.Context) error {
					ready := time.Since(s.began) >= test.readyAt
					time.Sleep(test.probing)
					if !ready {
						return errors.New("not yet")
					}
					return nil
				}
				s.Start()
				defer s.Stop(context.Background())
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := s.AwaitReady(ctx, test.first)
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func value[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		must(t, err)
		return v
	}
}
