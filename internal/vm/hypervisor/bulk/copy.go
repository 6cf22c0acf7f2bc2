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

// bufferBytes is how much is copied at a time. Copying record by record would spend half of its time in system calls:
// crypto/tls writes and reads each record separately, and a record has at most 16 KiB.
const bufferBytes = 256 << 10

// recordBytes is the maximum payload of a record.
const recordBytes = 16 << 10

// gathering is a connection that can send several records at once.
type gathering struct {
	net.Conn
	// mu is needed because crypto/tls may also write during a read or a close.
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

// together calls write, and then sends everything that it has written.
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

// send copies to a connection over g until the end of from, and until everything was sent.
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

// strictConn is a connection whose end without a close_notify is an error. Package crypto/tls accepts such an end
// between two records. Several records are read at a time.
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

// receive copies from a connection over c until its end. Records that have arrived together are written at once.
func (c strictConn) receive(to io.Writer, conn *tls.Conn) error {
	buffer, filled := make([]byte, bufferBytes), 0
	for {
		n, end := conn.Read(buffer[filled:])
		filled += n
		more := end == nil && c.arrived.Buffered() > 0
		// A receiver that has everything may have closed: then even an empty write fails.
		if filled > 0 && (!more || len(buffer)-filled < recordBytes) {
			if _, err := to.Write(buffer[:filled]); err != nil {
				return err
			}
			filled = 0
		}
		switch {
		case end == io.EOF: // without close_notify the error is another one
			return nil
		case end != nil:
			return end
		}
	}
}
