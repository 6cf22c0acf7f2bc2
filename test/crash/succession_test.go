package crash

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/serverfault"
)

// succession finds the points at which the world is as the operation before has left it. Whoever dies before
// such a point leaves what is left by a death after that operation.
//
// That is so if, when the point comes, the operation that began last is a point too and has ended, nothing was
// changed since its end by others than the manager, and no time has passed that matters: no more than a manager
// may go on after an answer was lost. Others that began earlier may be under way at both moments: what has begun
// is carried out, whoever dies.
//
// It is used under the lock of its gate, in runs in which nobody dies.
type succession struct {
	// outside describes what others than managers have changed, and reports whether they are changing
	// something now. Nil if that cannot be known.
	outside func() (state string, changing bool)
	now     func() time.Time
	// passing is how many operations have begun and not ended.
	passing int
	// newest is what began last, and left what its end left: nil if it has not ended, or is no point.
	newest point
	left   *endOfOne
	// succeeding are the points that were found, and those whose ends left the world so.
	succeeding map[point]point
}

// endOfOne is the end of an operation.
type endOfOne struct {
	point   point
	at      time.Time
	outside string
}

func newSuccession() *succession {
	return &succession{now: time.Now, succeeding: map[point]point{}}
}

// begin notes that an operation begins.
func (s *succession) begin(p point) {
	if s.left != nil && p.occurrence > 0 {
		state, changing := s.outside()
		if !changing && state == s.left.outside && s.now().Sub(s.left.at) < grace {
			s.succeeding[p] = s.left.point
		}
	}
	s.newest, s.left = p, nil
	s.passing++
}

// end notes that one ends.
func (s *succession) end(p point) {
	s.passing--
	if s.outside == nil || p.occurrence == 0 || p != s.newest {
		return
	}
	if state, changing := s.outside(); !changing {
		s.left = &endOfOne{point: p, at: s.now(), outside: state}
	}
}

// deaths are the deaths at the points of a run that leave different worlds. Of deaths that leave the same,
// that with the lost answer is tried: what the manager does with the loss is seen, too.
//
//   - A process that dies after an operation, and one that loses the answer, leave the same: the latter can
//     do nothing more.
//   - A process that dies before a succeeding point leaves what it would have left after the one that it succeeds.
//
// Where another process goes on, it may do something else in each case, so that all deaths are tried.
func (s scenario) deaths(points []point, succeeding map[point]point) []crash {
	var distinct []crash
	for _, p := range points {
		_, succeeds := succeeding[p]
		for _, w := range s.ways() {
			if w != before || !s.alone() || !succeeds {
				distinct = append(distinct, crash{point: p, way: w})
			}
		}
	}
	return distinct
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
