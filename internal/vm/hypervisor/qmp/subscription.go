package qmp

import "sync"

// Subscription is a bounded queue of events. One that is not read loses its oldest
// events and never holds up the connection, because responses come through the same
// stream: a lazy reader of events must not stop anybody's command.
type Subscription struct {
	client *Client
	events chan Event

	mu     sync.Mutex
	lost   uint64
	closed bool
}

// Subscribe starts a queue of at most size events, of all names; a size below 1
// counts as 1. Events from before the call are not in it. The queue ends with the
// connection, or with Close.
func (c *Client) Subscribe(size int) *Subscription {
	s := &Subscription{client: c, events: make(chan Event, max(size, 1))}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		s.end()
		return s
	}
	c.subscriptions[s] = struct{}{}
	return s
}

// Events returns the events in order. The channel is closed when the queue ends,
// after what is still queued.
func (s *Subscription) Events() <-chan Event {
	return s.events
}

// Lost says how many events were dropped since nobody had read them in time.
func (s *Subscription) Lost() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// Close ends the queue. It may be called more than once.
func (s *Subscription) Close() {
	s.client.mu.Lock()
	delete(s.client.subscriptions, s)
	s.client.mu.Unlock()
	s.end()
}

// publish queues an event. It does not block: publish is the channel's only sender
// and holds the lock, so whoever makes room keeps it.
func (s *Subscription) publish(event Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if len(s.events) == cap(s.events) {
		select {
		case <-s.events:
			s.lost++
		default: // a reader was faster
		}
	}
	s.events <- event
}

func (s *Subscription) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.events)
	}
}
