package crash

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/serverfault"
)

// succession finds the points at which the world is as an earlier operation has left it, and the operations that
// do not change the world.
//
// A process that crashes at a point leaves what was done before, and everything that has started, which is still
// executed. If the response of an operation is lost, the world is the same, including that operation, because
// nothing starts after it. A crash before a point is therefore equivalent to a lost response of the operation
// that started last, under two conditions. Since the end of that operation, or since its start if it has not
// completed, only the manager has changed anything. And no more time has passed than a manager may continue after
// a lost response.
//
// It is used under the lock of its gate, in runs without a crash.
type succession struct {
	// outside describes what others than managers have changed, and reports whether a change is in progress. If
	// nil, that is unknown.
	outside func() (state string, changing bool)
	now     func() time.Time
	// passing is the number of operations in progress.
	passing int
	// newest is the operation that started last. left is the operation whose lost response leaves the current
	// world, or nil if none is known. earlier is the value of left before newest started, if newest succeeds it.
	newest        point
	left, earlier *worldOfOne
	found         sameWorlds
}

// sameWorlds contains crash points that are equivalent to others.
type sameWorlds struct {
	// succeeding maps points to the points whose lost response leaves the same world.
	succeeding map[point]point
	// idle contains points whose operations change nothing.
	idle map[point]bool
}

func (w sameWorlds) clone() sameWorlds {
	return sameWorlds{maps.Clone(w.succeeding), maps.Clone(w.idle)}
}

// worldOfOne is the world after a lost response to an operation.
type worldOfOne struct {
	point   point
	at      time.Time
	outside string
}

func newSuccession() *succession {
	return &succession{now: time.Now, found: sameWorlds{succeeding: map[point]point{}, idle: map[point]bool{}}}
}

// begin records the start of an operation.
func (s *succession) begin(p point) {
	s.passing++
	s.newest, s.earlier = p, nil
	if s.outside == nil || p.occurrence == 0 {
		s.left = nil
		return
	}
	state, changing := s.outside()
	if s.left != nil && !changing && state == s.left.outside && s.now().Sub(s.left.at) < grace {
		s.found.succeeding[p] = s.left.point
		s.earlier = s.left
	}
	s.leaves(p, state, changing)
}

// end records the completion of an operation, and whether it was idle, which means that it has changed nothing.
// If nothing has started since an idle operation, its lost response leaves the previous world.
func (s *succession) end(p point, idle bool) {
	s.passing--
	if s.outside == nil || p.occurrence == 0 || p != s.newest {
		return
	}
	if idle {
		s.found.idle[p] = true
		if s.earlier != nil {
			s.left = s.earlier // so that the elapsed time counts
			return
		}
	}
	state, changing := s.outside()
	s.leaves(p, state, changing)
}

// leaves records that a lost response to an operation leaves the current world, unless a change is in progress.
func (s *succession) leaves(p point, state string, changing bool) {
	s.left = nil
	if !changing {
		s.left = &worldOfOne{point: p, at: s.now(), outside: state}
	}
}

// crashPoints returns the crash points of a run that leave different worlds. Of equivalent crash points, the one with the
// lost response is tried, because that also tests how the manager handles the loss.
//
//   - A crash after an operation is equivalent to a lost response: the manager can do nothing more.
//   - A crash before a succeeding point is equivalent to a lost response of the point that it succeeds.
//   - The world is the same before and after an idle operation. If it is a query of the driver, and another crash point
//     leaves the same world, neither is tried. One additional run without a crash tests how the manager handles lost
//     responses: it gets none of these at first.
//
// If another process continues, it may act differently in each case, so all crash points are tried.
func (s scenario) crashPoints(points []point, same sameWorlds) []crash {
	var distinct []crash
	for _, p := range points {
		for _, w := range s.ways() {
			if !s.alone() || !same.leftOut(p, w) {
				distinct = append(distinct, crash{point: p, way: w})
			}
		}
	}
	if s.alone() && slices.ContainsFunc(points, func(p point) bool { return same.idle[p] && p.asks() }) {
		distinct = append(distinct, crash{way: unanswered})
	}
	return distinct
}

// leftOut reports whether a crash at a point is equivalent to another one, which is tried.
func (w sameWorlds) leftOut(p point, in way) bool {
	_, succeeds := w.succeeding[p]
	if in == before {
		return succeeds || w.idle[p]
	}
	return succeeds && w.idle[p] && p.asks()
}

// leftOut returns the crash points that are not tried.
func leftOut(points []point, distinct []crash) []crash {
	return slices.DeleteFunc(crashes(points), func(c crash) bool { return slices.Contains(distinct, c) })
}

// ways returns the ways in which a manager may crash at a point, without those that are equivalent to others.
func (s scenario) ways() []way {
	if s.alone() {
		return []way{before, lost}
	}
	return ways
}

// alone reports whether no process continues after the crash of one.
func (s scenario) alone() bool { return s.plugIn == "" && !s.secondManager }

// writes counts the writes of others than managers to an API server.
type writes struct {
	mu           sync.Mutex
	made, making int
}

// countingWrites returns a run's share of a cluster whose writes are counted.
func countingWrites(c *env.Cluster) (*env.Cluster, *writes, error) {
	w := &writes{}
	own := *c
	own.Admin = rest.CopyConfig(c.Admin)
	own.Admin.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counting{next, w} })
	var err error
	own.Client, err = client.New(own.Admin, client.Options{Scheme: c.Client.Scheme(), Mapper: c.Client.RESTMapper()})
	return &own, w, err
}

func (w *writes) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.making++
}

func (w *writes) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.making--
	w.made++
}

// count returns the number of writes, and whether writes are in progress. A nil value has none.
func (w *writes) count() (made int, making bool) {
	if w == nil {
		return 0, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made, w.making > 0
}

// counting is a transport whose writes are counted.
type counting struct {
	next   http.RoundTripper
	writes *writes
}

// RoundTrip implements http.RoundTripper.
func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, writes := serverfault.Verbs[r.Method]; writes {
		c.writes.begin()
		defer c.writes.end()
	}
	return c.next.RoundTrip(r)
}

// outside describes what others than managers have changed in a run, in the API servers and in the VMs.
func (r *run) outside() (state string, changing bool) {
	control, inControl := r.writes.control.count()
	target, inTarget := r.writes.target.count()
	vms, err := r.cloud.VMs()
	if err != nil {
		return "", true // unknown
	}
	text, err := json.Marshal(vms)
	return fmt.Sprintf("%d, %d, %s", control, target, text), inControl || inTarget || err != nil
}
