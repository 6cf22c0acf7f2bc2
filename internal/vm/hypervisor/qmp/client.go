// Package qmp is a client of the QEMU Machine Protocol (QMP).
//
// QMP controls a running QEMU with JSON objects, one per line. QEMU sends a greeting, and the client enables its
// capabilities. From then on, responses are matched to commands by ID, with events in between; see
// docs/interop/qmp-spec in QEMU's source. The package does not know any commands.
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

const (
	// maxLine is the maximum size of a message in bytes. The largest responses (the schema of all commands) have
	// several hundred kilobytes.
	maxLine = 8 << 20
	// drainTimeout is how long to keep reading from a connection that can no longer be written to.
	drainTimeout = time.Second
)

// ErrDisconnected is wrapped by the errors of commands that got no response because the connection was lost. QEMU
// may have executed the command.
var ErrDisconnected = errors.New("connection to QEMU lost")

// Client is one QMP connection. It is safe for concurrent use.
type Client struct {
	conn    net.Conn
	onEvent func(Event)
	// outgoing passes whole messages to the goroutine that writes. Otherwise, a command whose context is canceled
	// could leave half a message on the connection.
	outgoing chan []byte
	greeted  chan struct{}
	done     chan struct{}

	mu      sync.Mutex
	lastID  uint64
	waiters map[string]chan message
	err     error // the reason why the connection was closed, or nil
}

// New takes over a connection to QEMU's monitor in control mode, waits for QEMU's greeting and enables the
// commands. It closes the connection if that fails. It calls onEvent for each event, in order. The function must
// not block, because responses come through the same connection. The context applies only to New itself.
func New(ctx context.Context, conn net.Conn, onEvent func(Event)) (*Client, error) {
	c := &Client{
		conn:     conn,
		onEvent:  onEvent,
		outgoing: make(chan []byte),
		greeted:  make(chan struct{}),
		done:     make(chan struct{}),
		waiters:  map[string]chan message{},
	}
	go c.read()
	go c.write()
	if err := c.negotiate(ctx); err != nil {
		c.fail(err)
		return nil, err
	}
	return c, nil
}

func (c *Client) negotiate(ctx context.Context) error {
	select {
	case <-c.greeted:
	case <-c.done:
		return fmt.Errorf("waiting for QEMU's greeting: %w", c.reason())
	case <-ctx.Done():
		return fmt.Errorf("waiting for QEMU's greeting: %w", context.Cause(ctx))
	}
	return c.Execute(ctx, "qmp_capabilities", nil, nil)
}

// Execute runs a command and waits for its response. The arguments must be nil or encode to a JSON object. The
// response is decoded into result, unless that is nil.
//
// Errors: *Error if QEMU rejects the command, ErrDisconnected, or the context's cause. In the last case, QEMU may
// still execute the command.
func (c *Client) Execute(ctx context.Context, command string, arguments, result any) error {
	id, response, err := c.expect()
	if err != nil {
		return fmt.Errorf("QMP command %s: %w", command, err)
	}
	defer c.forget(id)
	text, err := json.Marshal(request{Execute: command, Arguments: arguments, ID: id})
	if err != nil {
		return fmt.Errorf("encoding the arguments of %s: %w", command, err)
	}
	got, err := c.exchange(ctx, append(text, '\n'), response)
	switch {
	case err != nil:
		return fmt.Errorf("QMP command %s: %w", command, err)
	case got.Error != nil:
		return &Error{Command: command, Class: got.Error.Class, Description: got.Error.Description}
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(got.Return, result); err != nil {
		return fmt.Errorf("decoding the response to %s: %w", command, err)
	}
	return nil
}

// exchange sends a message and waits for its response.
func (c *Client) exchange(ctx context.Context, text []byte, response <-chan message) (message, error) {
	select {
	case c.outgoing <- text:
	case <-c.done:
		return message{}, c.reason()
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	}
	select {
	case got := <-response:
		return got, nil
	case <-c.done:
	case <-ctx.Done():
		return message{}, context.Cause(ctx)
	}
	// The response may have been the last message on the connection.
	select {
	case got := <-response:
		return got, nil
	default:
		return message{}, c.reason()
	}
}

// Done is closed when the connection is closed, after the last call of onEvent.
func (c *Client) Done() <-chan struct{} { return c.done }

func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// expect returns the ID of the next command and the channel for its response.
func (c *Client) expect() (string, <-chan message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return "", nil, c.err
	}
	c.lastID++
	id := strconv.FormatUint(c.lastID, 10)
	response := make(chan message, 1) // buffered, so that the reader does not block
	c.waiters[id] = response
	return id, response, nil
}

func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiters, id)
}

// fail closes the connection. Only the first reason is kept.
func (c *Client) fail(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = reason
	_ = c.conn.Close()
	close(c.done)
}

// read is the only reader of the connection.
func (c *Client) read() {
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(nil, maxLine)
	err := io.EOF
	for lines.Scan() {
		got, malformed := decode(lines.Bytes())
		if malformed != nil {
			err = malformed
			break
		}
		c.dispatch(got)
	}
	if lines.Err() != nil {
		err = lines.Err()
	}
	c.fail(fmt.Errorf("%w: %w", ErrDisconnected, err))
}

func (c *Client) dispatch(got message) {
	switch {
	case got.Greeting != nil:
		select {
		case <-c.greeted: // a second greeting is ignored
		default:
			close(c.greeted)
		}
	case got.Event != "":
		c.onEvent(Event{Name: got.Event, Data: got.Data})
	default:
		c.mu.Lock()
		defer c.mu.Unlock()
		if waiter, found := c.waiters[got.ID]; found { // otherwise the command's context was canceled
			delete(c.waiters, got.ID)
			waiter <- got
		}
	}
}

// write is the only writer of the connection.
func (c *Client) write() {
	for {
		select {
		case text := <-c.outgoing:
			if _, err := c.conn.Write(text); err != nil {
				// QEMU's last messages may still be unread and contain the reason for its exit. The reader closes
				// the connection immediately, unless only one direction of the connection is broken.
				_ = c.conn.SetReadDeadline(time.Now().Add(drainTimeout))
				return
			}
		case <-c.done:
			return
		}
	}
}

// errMalformed is wrapped by errors about invalid messages from QEMU.
var errMalformed = errors.New("malformed QMP message")

// Error is QEMU's rejection of a command. The connection remains usable.
type Error struct {
	// Command is the command that was rejected.
	Command string
	// Class is QEMU's error class. It is nearly always "GenericError"; other values are "CommandNotFound" and
	// "DeviceNotFound".
	Class string
	// Description is a message for users. It is often the only way to distinguish errors.
	Description string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("QEMU rejected %s: %s (%s)", e.Command, e.Description, e.Class)
}

// Event is an asynchronous message from QEMU.
type Event struct {
	// Name is the name of the event, such as "SHUTDOWN".
	Name string
	// Data is the event's JSON object, or nil if there is none.
	Data json.RawMessage
}

type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        string `json:"id"`
}

// message is one line from QEMU: a greeting, an event, or the response with an ID. Unknown members are ignored, as
// the protocol's specification requires.
type message struct {
	Greeting json.RawMessage `json:"QMP"`
	Event    string          `json:"event"`
	Data     json.RawMessage `json:"data"`
	ID       string          `json:"id"`
	Return   json.RawMessage `json:"return"`
	Error    *struct {
		Class       string `json:"class"`
		Description string `json:"desc"`
	} `json:"error"`
}

// decode parses one line from QEMU. A response without an ID is an error. QEMU sends such a response if it could
// not parse a command; the caller of that command would otherwise wait forever.
func decode(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	switch {
	case m.Greeting != nil || m.Event != "":
		return m, nil
	case m.Return == nil && m.Error == nil:
		return message{}, fmt.Errorf("%w: neither greeting, event nor response", errMalformed)
	case m.ID == "":
		return message{}, fmt.Errorf("%w: response without ID: %.300s", errMalformed, line)
	}
	return m, nil
}
