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

// succession finds the points at which the world is as the operation before has left it, and the operations that
// leave the world as it was.
//
// Who dies at a point leaves what was done before, and all that has begun: that is carried out, whoever dies. Who
// loses the answer to an operation leaves the same with that operation, as nothing begins after it. So who dies before a
// point leaves what a lost answer to the operation that began last would have left if, when the point comes, nothing
// was changed by others than the manager since that operation ended or, if it has not, began, and no time has passed
// that matters: no more than a manager may go on after an answer was lost.
//
// It is used under the lock of its gate, in runs in which nobody dies.
type succession struct {
	// outside describes what others than managers have changed, and reports whether they are changing
	// something now. Nil if that cannot be known.
	outside func() (state string, changing bool)
	now     func() time.Time
	// passing is how many operations have begun and not ended.
	passing int
	// newest is what began last. left is whose lost answer leaves the world as it is now: nil if none is known to.
	// earlier is what left was before newest began, if that succeeds it.
	newest        point
	left, earlier *worldOfOne
	found         sameWorlds
}

// sameWorlds are deaths that leave what others leave.
type sameWorlds struct {
	// succeeding are points at which the world is as a lost answer to another one leaves it, and these.
	succeeding map[point]point
	// idle are points whose operations change nothing.
	idle map[point]bool
}

func (w sameWorlds) clone() sameWorlds {
	return sameWorlds{maps.Clone(w.succeeding), maps.Clone(w.idle)}
}

// worldOfOne is the world that a lost answer to an operation leaves.
type worldOfOne struct {
	point   point
	at      time.Time
	outside string
}

func newSuccession() *succession {
	return &succession{now: time.Now, found: sameWorlds{succeeding: map[point]point{}, idle: map[point]bool{}}}
}

// begin notes that an operation begins.
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

// end notes that one ends, and whether it was idle: it has changed nothing. If nothing has begun since, its lost answer
// leaves what was there before.
func (s *succession) end(p point, idle bool) {
	s.passing--
	if s.outside == nil || p.occurrence == 0 || p != s.newest {
		return
	}
	if idle {
		s.found.idle[p] = true
		if s.earlier != nil {
			s.left = s.earlier // so that the time that has passed counts
			return
		}
	}
	state, changing := s.outside()
	s.leaves(p, state, changing)
}

// leaves notes that a lost answer to an operation leaves the world as it is now, unless somebody is changing it.
func (s *succession) leaves(p point, state string, changing bool) {
	s.left = nil
	if !changing {
		s.left = &worldOfOne{point: p, at: s.now(), outside: state}
	}
}

// deaths are the deaths at the points of a run that leave different worlds. Of deaths that leave the same,
// that with the lost answer is tried: what the manager does with the loss is seen, too.
//
//   - A process that dies after an operation, and one that loses the answer, leave the same: the latter can
//     do nothing more.
//   - A process that dies before a succeeding point leaves what a lost answer to the one that it succeeds leaves.
//   - Before and after an idle operation, the world is the same. If it is a question to the driver, and that world is left by
//     another one, too, neither is tried: what the manager does without such answers is seen in one more run, in which it gets
//     none of them at first, and lives.
//
// Where another process goes on, it may do something else in each case, so that all deaths are tried.
func (s scenario) deaths(points []point, same sameWorlds) []crash {
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

// leftOut reports whether a death at a point leaves what another one leaves, which is tried.
func (w sameWorlds) leftOut(p point, in way) bool {
	_, succeeds := w.succeeding[p]
	if in == before {
		return succeeds || w.idle[p]
	}
	return succeeds && w.idle[p] && p.asks()
}

// leftOut are the deaths at points that are not among those to be tried.
func leftOut(points []point, distinct []crash) []crash {
	return slices.DeleteFunc(crashes(points), func(c crash) bool { return slices.Contains(distinct, c) })
}

// ways are those in which a manager may die at a point, without that which leaves what another one leaves.
func (s scenario) ways() []way {
	if s.alone() {
		return []way{before, lost}
	}
	return ways
}

// alone reports whether no process goes on when one has died.
func (s scenario) alone() bool { return s.plugIn == "" && !s.secondManager }

// writes counts what others than managers write to an API server.
type writes struct {
	mu           sync.Mutex
	made, making int
}

// countingWrites is a run's share of a cluster, whose writes are counted.
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

// count returns how many were made, and whether more are being made. Nil has none.
func (w *writes) count() (made int, making bool) {
	if w == nil {
		return 0, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.made, w.making > 0
}

// counting is the way of requests whose writes are counted.
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

// outside describes what others than managers have changed in a run: at the API servers, and of the VMs.
func (r *run) outside() (state string, changing bool) {
	control, inControl := r.writes.control.count()
	target, inTarget := r.writes.target.count()
	vms, err := r.cloud.VMs()
	if err != nil {
		return "", true // it cannot be known
	}
	text, err := json.Marshal(vms)
	return fmt.Sprintf("%d, %d, %s", control, target, text), inControl || inTarget || err != nil
}
