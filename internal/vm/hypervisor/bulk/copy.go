package bulk

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// bufferBytes is how much is copied at once. Half of what a copy of records one by one takes is calls of the kernel: crypto/tls
// writes and reads each record by itself, which has 16 KiB at most.
const bufferBytes = 256 << 10

// recordBytes is the most that a record carries.
const recordBytes = 16 << 10

// gathering is a connection that can send several records at once.
type gathering struct {
	net.Conn
	// mu: crypto/tls may also write while it reads, or is closed.
	mu      sync.Mutex
	gathers bool
	records []byte
}

// Write implements net.Conn.
func (g *gathering) Write(record []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gathers {
		return g.Conn.Write(record)
	}
	g.records = append(g.records, record...)
	return len(record), nil
}

// together calls write, and then sends all that it has written.
func (g *gathering) together(write func() error) error {
	g.mu.Lock()
	g.gathers = true
	g.mu.Unlock()
	err := write()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gathers = false
	_, sent := g.Conn.Write(g.records)
	g.records = g.records[:0]
	return errors.Join(err, sent)
}

// send copies to a connection over g until the end of from, and until all has left.
func (g *gathering) send(conn *tls.Conn, from io.Reader) error {
	buffer := make([]byte, bufferBytes)
	for {
		n, end := from.Read(buffer)
		if n > 0 {
			if err := g.together(func() error { _, err := conn.Write(buffer[:n]); return err }); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(end, io.EOF):
			return nil
		case end != nil:
			return end
		}
	}
}

// errNoNotify is not io.ErrUnexpectedEOF itself, which crypto/tls turns into io.EOF.
var errNoNotify = fmt.Errorf("%w: the connection was closed without a close_notify", io.ErrUnexpectedEOF)

// strictConn is a connection whose end without a close_notify is an error. Package crypto/tls takes
// it for an end in order if it comes between two records. Several records are read at once.
type strictConn struct {
	net.Conn
	arrived *bufio.Reader
}

func newStrictConn(raw net.Conn) strictConn {
	return strictConn{raw, bufio.NewReaderSize(raw, bufferBytes)}
}

// Read implements net.Conn.
func (c strictConn) Read(p []byte) (int, error) {
	n, err := c.arrived.Read(p)
	if err == io.EOF { // never wrapped by a net.Conn
		err = errNoNotify
	}
	return n, err
}

// receive copies from a connection over c until its end. What of several records has arrived is written at once.
func (c strictConn) receive(to io.Writer, conn *tls.Conn) error {
	buffer, filled := make([]byte, bufferBytes), 0
	for {
		n, end := conn.Read(buffer[filled:])
		filled += n
		more := end == nil && c.arrived.Buffered() > 0
		// Who has taken all may have closed: then also a write of nothing is an error.
		if filled > 0 && (!more || len(buffer)-filled < recordBytes) {
			if _, err := to.Write(buffer[:filled]); err != nil {
				return err
			}
			filled = 0
		}
		switch {
		case end == io.EOF: // without close_notify it is another one
			return nil
		case end != nil:
			return end
		}
	}
}
