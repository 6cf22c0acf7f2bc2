// Package console shares a guest's serial port among its clients.
package console

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/tail"
)

const (
	// HistorySize is the maximum number of bytes of earlier output that a new client receives.
	HistorySize = 64 << 10

	// clientLimit is the maximum number of bytes that may be pending for a client.
	clientLimit = 2 * HistorySize
)

var (
	// ErrSlowClient means that a client was disconnected because it did not read the console's output in time. It
	// may attach again, but it has missed output.
	ErrSlowClient = errors.New("console client did not read its output in time")

	// ErrClientClosed is returned by the methods of a client after its Close.
	ErrClientClosed = errors.New("console client is closed")

	// ErrEnded is returned to writers after the machine has terminated.
	ErrEnded = errors.New("console has ended")
)

// Console is the guest's serial port, shared by any number of clients. It exists as long as the machine, so it
// survives a reset of the guest.
//
// It reads the port even without clients, because a guest whose output is not read blocks.
type Console struct {
	conn    net.Conn
	input   chan []byte // whole messages for the goroutine that writes
	done    chan struct{}
	history tail.Writer

	mu      sync.Mutex
	clients map[*Client]struct{}
	ended   bool
}

// New takes over the connection to a serial port. The console terminates when the connection is closed.
func New(conn net.Conn) *Console {
	c := &Console{
		conn:    conn,
		input:   make(chan []byte),
		done:    make(chan struct{}),
		history: tail.Writer{Limit: HistorySize},
		clients: map[*Client]struct{}{},
	}
	go c.read()
	go c.write()
	return c
}

// Done is closed when the console has terminated and all of its output is available.
func (c *Console) Done() <-chan struct{} { return c.done }

// Attach adds a client. The client first receives up to HistorySize bytes of earlier output, and then new output
// without a gap. After the machine has terminated, it receives only the earlier output. The caller must close the
// client.
func (c *Console) Attach() *Client { return c.attach(c.history.Bytes) }

// AttachNow is like Attach, but without the earlier output.
func (c *Console) AttachNow() *Client { return c.attach(func() []byte { return nil }) }

func (c *Console) attach(history func() []byte) *Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := &Client{
		console: c,
		pending: history(),
		wake:    make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
	client.replay = len(client.pending)
	if c.ended {
		client.err = io.EOF
		close(client.ended)
	} else {
		c.clients[client] = struct{}{}
	}
	return client
}

// read is the only reader of the port. It never waits for clients.
func (c *Console) read() {
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
	_, _ = c.history.Write(output)
	for client := range c.clients {
		if len(client.pending)+len(output) > clientLimit {
			c.detach(client, ErrSlowClient)
			continue
		}
		client.pending = append(client.pending, output...)
		client.notify()
	}
}

// detach disconnects a client. The caller must hold the lock.
func (c *Console) detach(client *Client, reason error) {
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
	_ = c.conn.Close()
	close(c.done)
}

// write is the only writer of the port, so messages are not interleaved. A guest that does not read blocks it, and
// therefore also blocks the clients that write.
func (c *Console) write() {
	for {
		select {
		case message := <-c.input:
			if _, err := c.conn.Write(message); err != nil {
				return // the reader gets the error, too
			}
		case <-c.done:
			return
		}
	}
}

// Client reads from and writes to a console. Next must not be called concurrently; the other methods are safe for
// concurrent use.
type Client struct {
	console *Console
	wake    chan struct{}
	ended   chan struct{}
	replay  int

	// The following fields are guarded by the lock of the console.
	pending []byte
	err     error
}

// Ended is closed when there is no new output. Next then returns the pending output, followed by the reason.
func (c *Client) Ended() <-chan struct{} { return c.ended }

// Replay returns the number of bytes that were output before the client attached. They are returned first.
func (c *Client) Replay() int { return c.replay }

// Slow reports whether the client was disconnected because it did not read in time.
func (c *Client) Slow() bool {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	return errors.Is(c.err, ErrSlowClient)
}

// Next waits for output and returns all of it, at least one byte, unchanged. After all output was returned, it
// returns an error: io.EOF if the machine has terminated, ErrSlowClient, ErrClientClosed, or the context's cause.
func (c *Client) Next(ctx context.Context) ([]byte, error) {
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

func (c *Client) take() ([]byte, error) {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	if len(c.pending) == 0 {
		return nil, c.err
	}
	output := c.pending
	c.pending = nil
	return output, nil
}

// Write sends one message to the guest without interleaving it with input of other clients. It returns once it is
// certain that the whole message will be sent. While the guest does not read, Write blocks until the context is
// canceled. An empty message has no effect. Errors: those of Next, but ErrEnded if the machine has terminated.
func (c *Client) Write(ctx context.Context, message []byte) error {
	if err := c.writable(); err != nil || len(message) == 0 {
		return err
	}
	select {
	case c.console.input <- bytes.Clone(message):
		return nil
	case <-c.console.done:
		return ErrEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Client) writable() error {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	if errors.Is(c.err, io.EOF) {
		return ErrEnded
	}
	return c.err
}

// Close detaches the client and drops its pending output. The console continues. Close may be called more than
// once.
func (c *Client) Close() {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	c.console.detach(c, ErrClientClosed)
	c.pending = nil
}

// notify wakes Next. One notification is enough for any amount of output.
func (c *Client) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
