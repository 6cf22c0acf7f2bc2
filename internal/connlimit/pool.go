package connlimit

import (
	"container/heap"
	"container/list"
	"math"
	"sync"
)

// Pool contains connections that may be closed in favor of others. Create one with NewPool.
type Pool struct {
	total int

	mu   sync.Mutex
	size int
	// next is the position of the next connection in the order in which they were added or renewed.
	next   uint64
	groups map[Origin]*group
	// order is a heap of the groups. The connection to close first is the oldest one of the first group.
	order groups
}

// group contains the connections of one origin.
type group struct {
	of      Origin
	members *list.List // of *member, the oldest one first
	at      int        // in Pool.order
}

type member struct {
	position uint64
	end      func()
}

// NewPool returns a pool for at most total connections.
func NewPool(total int) *Pool { return &Pool{total: total, groups: map[Origin]*group{}} }

// NewUnlimitedPool returns a pool for any number of connections, which closes connections only in Displace.
func NewUnlimitedPool() *Pool { return NewPool(math.MaxInt) }

// Add adds a connection until leave is called. If the pool is full, another connection leaves it and is closed: the
// oldest one of the origin with the most connections. To close a connection, the pool calls end, which must not block
// and may be called after leave.
func (p *Pool) Add(from Origin, end func()) (leave func()) {
	leave, displaced := p.add(from, end)
	displaced()
	return leave
}

// AddFlow adds a flow, which unlike a connection does not end by itself. Calling renew makes it the newest one of its origin,
// so that the pool closes the flow that has been idle the longest.
func (p *Pool) AddFlow(from Origin, end func()) (renew, leave func()) {
	g, element, displaced := p.insert(from, end)
	displaced()
	return func() { p.renew(g, element) }, p.leaving(g, element)
}

// add is like Add, but the caller must close the connection that has left, by calling displaced.
func (p *Pool) add(from Origin, end func()) (leave, displaced func()) {
	g, element, displaced := p.insert(from, end)
	return p.leaving(g, element), displaced
}

func (p *Pool) insert(from Origin, end func()) (g *group, element *list.Element, displaced func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	displaced = func() {}
	if p.size >= p.total && len(p.order) > 0 {
		displaced = p.removeFirst()
	}
	if g = p.groups[from]; g == nil {
		g = &group{of: from, members: list.New()}
		p.groups[from] = g
		heap.Push(&p.order, g)
	}
	element = g.members.PushBack(&member{p.next, end})
	p.next++
	p.size++
	heap.Fix(&p.order, g.at)
	return g, element, displaced
}

// leaving returns the function that removes a connection.
func (p *Pool) leaving(g *group, element *list.Element) (leave func()) {
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.remove(g, element)
	})
}

// renew moves a connection to the end of the order, unless it has been removed.
func (p *Pool) renew(g *group, element *list.Element) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.groups[g.of] != g {
		return // it was the last one of its origin
	}
	if g.members.MoveToBack(element); g.members.Back() != element {
		return
	}
	element.Value.(*member).position = p.next
	p.next++
	heap.Fix(&p.order, g.at)
}

// Displace closes the oldest connection of the origin with the most connections, if a new connection of from leaves
// that origin with at least as many. It reports whether it closed one. It may be called repeatedly.
func (p *Pool) Displace(from Origin) bool {
	p.mu.Lock()
	own := 0
	if g := p.groups[from]; g != nil {
		own = g.members.Len()
	}
	if len(p.order) == 0 || p.order[0].members.Len() < own+2 {
		p.mu.Unlock()
		return false
	}
	end := p.removeFirst()
	p.mu.Unlock()
	end()
	return true
}

// removeFirst removes the connection to close first, and returns the function that closes it.
func (p *Pool) removeFirst() (end func()) {
	g := p.order[0]
	oldest := g.members.Front()
	p.remove(g, oldest)
	return oldest.Value.(*member).end
}

// remove removes a connection unless it has been removed.
func (p *Pool) remove(g *group, element *list.Element) {
	before := g.members.Len()
	if g.members.Remove(element); g.members.Len() == before {
		return
	}
	p.size--
	if g.members.Len() > 0 {
		heap.Fix(&p.order, g.at)
		return
	}
	heap.Remove(&p.order, g.at)
	delete(p.groups, g.of)
}

// groups implements heap.Interface. The group with the most connections is first, and of several, the one with the
// oldest connection. Empty groups are last.
type groups []*group

func (g groups) Len() int { return len(g) }

func (g groups) Less(i, j int) bool {
	a, b := g[i].members, g[j].members
	if a.Len() != b.Len() || a.Len() == 0 {
		return a.Len() > b.Len()
	}
	return a.Front().Value.(*member).position < b.Front().Value.(*member).position
}

func (g groups) Swap(i, j int) {
	g[i], g[j] = g[j], g[i]
	g[i].at, g[j].at = i, j
}

// Push implements heap.Interface.
func (g *groups) Push(x any) {
	added := x.(*group)
	added.at = len(*g)
	*g = append(*g, added)
}

// Pop implements heap.Interface.
func (g *groups) Pop() any {
	last := (*g)[len(*g)-1]
	*g = (*g)[:len(*g)-1]
	return last
}
