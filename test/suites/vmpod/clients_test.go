package vmpod

import (
	"sync"
	"time"

	"github.com/onsi/gomega"

	"github.com/millwright-dev/millwright/test/support/node"
)

// clients send requests to a guest through its Service, one after the other, from each host.
type clients struct {
	*place
	of      *peer
	stop    func()
	ended   chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex
	// sent are the results of the requests of each host.
	sent map[*node.Node][]result
}

// result is the result of a request.
type result struct {
	started, ended time.Time
	err            error
}

// sendRequests starts clients, and waits until each has sent requests.
func (p *place) sendRequests(to *peer) *clients {
	p.Helper()
	c := &clients{place: p, of: to, ended: make(chan struct{}), sent: map[*node.Node][]result{}}
	c.stop = sync.OnceFunc(func() { close(c.ended) })
	p.Cleanup(func() {
		c.stop()
		c.running.Wait()
	})
	for _, from := range p.nodes {
		c.running.Go(func() { c.send(from) })
	}
	c.awaitMore()
	return c
}

func (c *clients) send(from *node.Node) {
	for {
		select {
		case <-c.ended:
			return
		default:
		}
		started := time.Now()
		now, err := c.bootsOf(c.of, from)
		if err == nil && now != c.of.boots {
			c.Errorf("the boot IDs of guest %s are %+v, and were %+v", c.of.name, now, c.of.boots)
		}
		c.mu.Lock()
		c.sent[from] = append(c.sent[from], result{started, time.Now(), err})
		c.mu.Unlock()
	}
}

// awaitMore waits until requests of each host have succeeded.
func (c *clients) awaitMore() {
	c.Helper()
	begun := time.Now()
	c.eventually(func(g gomega.Gomega) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, from := range c.nodes {
			succeeded := 0
			for _, r := range c.sent[from] {
				if r.err == nil && r.started.After(begun) {
					succeeded++
				}
			}
			g.Expect(succeeded).To(gomega.BeNumerically(">", 5), from.Name)
		}
	})
}

// end stops the clients after further requests, and checks that none has failed.
func (c *clients) end() {
	c.Helper()
	c.awaitMore()
	c.stop()
	c.running.Wait()
	for _, from := range c.nodes {
		var longest time.Duration
		for _, r := range c.sent[from] {
			longest = max(longest, r.ended.Sub(r.started))
			if r.err != nil {
				c.Errorf("%s: a request from %s to guest %s failed: %v", r.ended.Format(time.StampMilli), from.Name, c.of.name, r.err)
			}
		}
		c.Logf("%d requests from %s to guest %s took up to %v", len(c.sent[from]), from.Name, c.of.name, longest)
	}
}
