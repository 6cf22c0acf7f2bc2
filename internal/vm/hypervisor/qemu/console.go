package qemu

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

const (
	// HistorySize is how much of the console's output a new client is given again,
	// in bytes.
	HistorySize = 64 << 10

	// clientLimit is how many bytes may wait for one client. A new one begins with
	// up to HistorySize of them.
	clientLimit = 2 * HistorySize
)

var (
	// ErrSlowClient ends a client that did not take the console's output in time.
	// It may attach again, and will have missed something.
	ErrSlowClient = errors.New("console client did not read its output in time")

	// ErrClientClosed is what a client gets after its Close.
	ErrClientClosed = errors.New("console client is closed")

	// ErrConsoleEnded is what writers get when the machine is gone.
	ErrConsoleEnded = errors.New("console has ended")
)

// Console is the guest's serial port, shared by any number of clients. It lives as
// long as the process of QEMU, so it survives a reset of the guest.
//
// The port is read whether or not anybody wants the output: a guest whose console
// nobody drains stops at its next character.
type Console struct {
	conn net.Conn
	// input hands whole messages to the one goroutine that writes.
	input chan []byte
	done  chan struct{}

	mu      sync.Mutex
	history tail
	clients map[*ConsoleClient]struct{}
	ended   bool
}

// NewConsole takes over the stream to a serial port. The console ends with the stream.
func NewConsole(conn net.Conn) *Console {
	c := &Console{
		conn:    conn,
		input:   make(chan []byte),
		done:    make(chan struct{}),
		history: tail{limit: HistorySize},
		clients: map[*ConsoleClient]struct{}{},
	}
	go c.drain()
	go c.feed()
	return c
}

// Attach adds a client. Its output begins with what the console said last, up to
// HistorySize bytes, and goes on without a gap. After the machine's end the history
// is all there is. The client must be closed.
func (c *Console) Attach() *ConsoleClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := &ConsoleClient{
		console: c,
		pending: append([]byte(nil), c.history.bytes()...),
		wake:    make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
	if c.ended {
		client.err = io.EOF
		close(client.ended)
	} else {
		c.clients[client] = struct{}{}
	}
	return client
}

// drain is the only reader of the port. It waits for no client.
func (c *Console) drain() {
	defer c.end()
	buffer := make([]byte, 32<<10)
	for {
		n, err := c.conn.Read(buffer)
		if n > 0 {
			c.broadcast(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

func (c *Console) broadcast(output []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history.write(output)
	for client := range c.clients {
		if len(client.pending)+len(output) > clientLimit {
			c.detach(client, ErrSlowClient)
			continue
		}
		client.pending = append(client.pending, output...)
		client.notify()
	}
}

// detach ends one client. The caller holds the lock.
func (c *Console) detach(client *ConsoleClient, reason error) {
	delete(c.clients, client)
	if client.err == nil {
		client.err = reason
		close(client.ended)
	}
	client.notify()
}

func (c *Console) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for client := range c.clients {
		c.detach(client, io.EOF)
	}
	_ = c.conn.Close() // it is broken anyway; this frees the descriptor
	close(c.done)
}

// feed is the only writer of the port, so messages do not mix. It may be held up by
// a guest that does not read; then writers wait, and readers do not.
func (c *Console) feed() {
	for {
		select {
		case message := <-c.input:
			if _, err := c.conn.Write(message); err != nil {
				return // drain sees the end too
			}
		case <-c.done:
			return
		}
	}
}

// ConsoleClient is one reader and writer of a console. Next may be called by one
// goroutine at a time; the other methods by any.
type ConsoleClient struct {
	console *Console
	wake    chan struct{}
	ended   chan struct{}

	// Both are guarded by the console's lock.
	pending []byte
	err     error
}

// Ended is closed when no more output is going to come. What came before may still be
// there for Next, and Next tells why.
func (c *ConsoleClient) Ended() <-chan struct{} { return c.ended }

// Slow reports whether the client was dropped because it did not read in time.
func (c *ConsoleClient) Slow() bool {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	return errors.Is(c.err, ErrSlowClient)
}

// Next waits for output and returns all there is: at least one byte, and any bytes at
// all, for nothing is translated. After the last output it fails: with io.EOF when
// the machine is gone, ErrSlowClient when this client was too slow, ErrClientClosed
// after Close; or with the context's cause.
func (c *ConsoleClient) Next(ctx context.Context) ([]byte, error) {
	for {
		output, err := c.take()
		if len(output) > 0 || err != nil {
			return output, err
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (c *ConsoleClient) take() ([]byte, error) {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	if len(c.pending) == 0 {
		return nil, c.err
	}
	output := c.pending
	c.pending = nil
	return output, nil
}

// Write sends one message to the guest. No other client's bytes get in between. It
// returns when the message is certain to be sent whole, should the guest read it; a
// guest that does not read makes writers wait until their context ends. An empty
// message does nothing. A client that has ended may not write: it gets what Next
// gives, and ErrConsoleEnded when the machine is gone.
func (c *ConsoleClient) Write(ctx context.Context, message []byte) error {
	if err := c.writable(); err != nil || len(message) == 0 {
		return err
	}
	select {
	case c.console.input <- append([]byte(nil), message...):
		return nil
	case <-c.console.done:
		return ErrConsoleEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *ConsoleClient) writable() error {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	if errors.Is(c.err, io.EOF) {
		return ErrConsoleEnded
	}
	return c.err
}

// Close detaches the client and drops what it has not read. The console goes on.
// Closing again does nothing.
func (c *ConsoleClient) Close() {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	c.console.detach(c, ErrClientClosed)
	c.pending = nil
}

// notify wakes Next. One wake-up is enough for any amount of output.
func (c *ConsoleClient) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
