package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// maxLine bounds the size of one message from QEMU, in bytes. The biggest answers
// (the schema of all commands) have some hundred kilobytes.
const maxLine = 8 << 20

// lastWords is how long a connection that cannot be written to is still read.
const lastWords = time.Second

var (
	// ErrDisconnected is wrapped by errors of commands whose response will not
	// come because the connection broke. Whether QEMU carried the command out is
	// unknown.
	ErrDisconnected = errors.New("connection to QEMU lost")

	// ErrClosed is wrapped by errors of commands on a client that Close was called
	// for.
	ErrClosed = errors.New("connection to QEMU closed")
)

// Client is one QMP connection. Its methods may be called from any goroutine.
type Client struct {
	conn net.Conn
	// outgoing hands whole messages to the one goroutine that writes. A command
	// given up half-way through would leave half a message on the wire.
	outgoing chan []byte
	greeted  chan struct{}
	done     chan struct{}

	mu            sync.Mutex
	lastID        uint64
	waiters       map[uint64]chan response
	subscriptions map[*Subscription]struct{}
	// err is why the connection ended; nil while it works.
	err error
}

// New takes over a stream whose other end is QEMU's monitor in control mode, waits
// for QEMU's greeting and enables the commands. The stream belongs to the client
// from here on, and is closed if New fails. The context bounds New only.
func New(ctx context.Context, conn net.Conn) (*Client, error) {
	c := &Client{
		conn:          conn,
		outgoing:      make(chan []byte),
		greeted:       make(chan struct{}),
		done:          make(chan struct{}),
		waiters:       map[uint64]chan response{},
		subscriptions: map[*Subscription]struct{}{},
	}
	go c.read()
	go c.write()
	if err := c.negotiate(ctx); err != nil {
		_ = c.Close() // the error of negotiating is the one that matters
		return nil, err
	}
	return c, nil
}

func (c *Client) negotiate(ctx context.Context) error {
	select {
	case <-c.greeted:
	case <-c.done:
		return fmt.Errorf("waiting for QEMU's greeting: %w", c.Err())
	case <-ctx.Done():
		return fmt.Errorf("waiting for QEMU's greeting: %w", context.Cause(ctx))
	}
	return c.Execute(ctx, "qmp_capabilities", nil, nil)
}

// Execute runs one command and waits for its response. The arguments must encode to
// a JSON object; nil stands for none. The response's value is decoded into result
// unless that is nil.
//
// A refusal by QEMU is an *Error. If the context ends first, its cause is returned
// and the command may still be carried out. ErrDisconnected and ErrClosed say that
// there will be no response.
func (c *Client) Execute(ctx context.Context, command string, arguments, result any) error {
	id, answer, err := c.expect()
	if err != nil {
		return fmt.Errorf("QMP command %s: %w", command, err)
	}
	defer c.forget(id)

	text, err := request{Execute: command, Arguments: arguments, ID: strconv.FormatUint(id, 10)}.encode()
	if err != nil {
		return err
	}
	got, err := c.exchange(ctx, text, answer)
	if err != nil {
		return fmt.Errorf("QMP command %s: %w", command, err)
	}
	return got.into(command, result)
}

// exchange sends a message and waits for what comes back.
func (c *Client) exchange(ctx context.Context, text []byte, answer <-chan response) (response, error) {
	select {
	case c.outgoing <- text:
	case <-c.done:
		return response{}, c.Err()
	case <-ctx.Done():
		return response{}, context.Cause(ctx)
	}
	select {
	case got := <-answer:
		return got, nil
	case <-c.done:
	case <-ctx.Done():
		return response{}, context.Cause(ctx)
	}
	// The response may have been the last thing before the connection ended.
	select {
	case got := <-answer:
		return got, nil
	default:
		return response{}, c.Err()
	}
}

func (r response) into(command string, result any) error {
	if r.failure != nil {
		failure := *r.failure
		failure.Command = command
		return &failure
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(r.result, result); err != nil {
		return fmt.Errorf("decoding the response to %s: %w", command, err)
	}
	return nil
}

// Done is closed when the connection has ended. All events that came before are
// queued by then.
func (c *Client) Done() <-chan struct{} {
	return c.done
}

// Err says why the connection ended, wrapping ErrDisconnected or ErrClosed; nil
// while it works.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and everybody's waiting. QEMU runs on. Closing again
// does nothing.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	return nil
}

// expect makes a place for a response.
func (c *Client) expect() (uint64, <-chan response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, c.err
	}
	c.lastID++
	answer := make(chan response, 1) // so that the reader need not wait
	c.waiters[c.lastID] = answer
	return c.lastID, answer, nil
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiters, id)
}

// fail ends the connection; the first reason stays.
func (c *Client) fail(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = reason
	_ = c.conn.Close() // nothing can be done about an error, and nothing is lost by it
	for subscription := range c.subscriptions {
		subscription.end()
	}
	c.subscriptions = nil
	close(c.done)
}

// read is the only reader of the connection.
func (c *Client) read() {
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		got, err := decode(lines.Bytes())
		if err != nil {
			c.fail(fmt.Errorf("%w: %w", ErrDisconnected, err))
			return
		}
		c.dispatch(got)
	}
	err := lines.Err()
	if err == nil {
		err = io.EOF
	}
	c.fail(fmt.Errorf("%w: %w", ErrDisconnected, err))
}

// dispatch never blocks: neither answers nor subscriptions make it wait.
func (c *Client) dispatch(got message) {
	switch {
	case got.greeting:
		select {
		case <-c.greeted: // a second greeting means nothing
		default:
			close(c.greeted)
		}
	case got.event != nil:
		c.publish(*got.event)
	case got.response != nil:
		c.answer(*got.response)
	}
}

func (c *Client) publish(event Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for subscription := range c.subscriptions {
		subscription.publish(event)
	}
}

// answer passes a response on. Nobody waits for the response of a command that was
// given up; that one is dropped.
func (c *Client) answer(got response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if waiter, found := c.waiters[got.id]; found {
		delete(c.waiters, got.id)
		waiter <- got
	}
}

// write is the only writer of the connection.
func (c *Client) write() {
	for {
		select {
		case text := <-c.outgoing:
			if _, err := c.conn.Write(text); err != nil {
				// QEMU's last words may still wait to be read, and tell why it
				// went. So the reader ends the connection, which it does at once
				// unless the stream is broken in one direction only.
				_ = c.conn.SetReadDeadline(time.Now().Add(lastWords))
				return
			}
		case <-c.done:
			return
		}
	}
}
