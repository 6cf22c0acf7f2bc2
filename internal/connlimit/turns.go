package connlimit

import (
	"runtime"
	"slices"
	"sync"
)

// handshakes are the turns of all handshakes of this process. They leave half of the processors to everything else.
var handshakes = newTurns(max(1, runtime.GOMAXPROCS(0)/2))

// turns limit how many connections compute at the same time. Origins that wait take turns, whatever the number of
// their connections, and so do connections that have computed before: their clients have waited for the result, which
// costs a client more than to send without waiting.
type turns struct {
	mu   sync.Mutex
	free int
	// queues are the connections that wait: first those that have computed before, then new ones.
	queues [2]queue
}

func newTurns(concurrent int) *turns { return &turns{free: concurrent} }

// take waits for a turn, until the returned function is called once. again means that the connection had one before.
// take returns false if gone is closed first.
func (t *turns) take(from Origin, again bool, gone <-chan struct{}) (end func(), ok bool) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return t.end, true
	}
	waiting, turn := &t.queues[1], make(chan struct{})
	if again {
		waiting = &t.queues[0]
	}
	waiting.add(from, turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return t.end, true
	case <-gone:
	}
	t.mu.Lock()
	left := waiting.remove(from, turn)
	t.mu.Unlock()
	if !left { // it has got the turn in the meantime
		t.end()
	}
	return nil, false
}

func (t *turns) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.queues {
		if turn := t.queues[i].next(); turn != nil {
			close(turn)
			return
		}
	}
	t.free++
}

// queue contains waiting connections by origin. The zero value is empty.
type queue struct {
	// order are the origins with waiting connections. The first one is next.
	order   []Origin
	waiting map[Origin][]chan struct{}
}

func (q *queue) add(from Origin, turn chan struct{}) {
	if q.waiting == nil {
		q.waiting = map[Origin][]chan struct{}{}
	}
	if len(q.waiting[from]) == 0 {
		q.order = append(q.order, from)
	}
	q.waiting[from] = append(q.waiting[from], turn)
}

// next removes the oldest connection of the first origin, which becomes the last origin; nil if there is none.
func (q *queue) next() chan struct{} {
	if len(q.order) == 0 {
		return nil
	}
	from := q.order[0]
	turn := q.waiting[from][0]
	q.order = q.order[1:]
	if q.waiting[from] = q.waiting[from][1:]; len(q.waiting[from]) == 0 {
		delete(q.waiting, from)
	} else {
		q.order = append(q.order, from)
	}
	return turn
}

// remove removes a connection. It returns false if it does not wait.
func (q *queue) remove(from Origin, turn chan struct{}) bool {
	at := slices.Index(q.waiting[from], turn)
	if at < 0 {
		return false
	}
	if q.waiting[from] = slices.Delete(q.waiting[from], at, at+1); len(q.waiting[from]) == 0 {
		delete(q.waiting, from)
		q.order = slices.DeleteFunc(q.order, func(o Origin) bool { return o == from })
	}
	return true
}
