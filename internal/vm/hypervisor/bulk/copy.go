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

// bufferBytes is the number of bytes that are copied at a time. Copying single records would spend half of the
// time in system calls: crypto/tls writes and reads each record separately, and a record has at most 16 KiB.
const bufferBytes = 256 << 10

// recordBytes is the maximum payload of a TLS record.
const recordBytes = 16 << 10

// gathering is a connection that can send several records in one system call.
type gathering struct {
	net.Conn
	// mu is necessary because crypto/tls may also write during a read or a close.
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

// together calls write and then sends everything that it has written.
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

// send copies to a connection over g until from is exhausted and everything has been sent.
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

// errNoNotify does not equal io.ErrUnexpectedEOF, which crypto/tls would convert to io.EOF.
var errNoNotify = fmt.Errorf("%w: the connection was closed without a close_notify", io.ErrUnexpectedEOF)

// strictConn is a connection that reports an error if it is closed without a close_notify. Package crypto/tls
// accepts that between two records. strictConn reads several records at a time.
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
	if err == io.EOF { // a net.Conn never wraps it
		err = errNoNotify
	}
	return n, err
}

// receive copies from a connection over c until the end of its data. It writes all records that have arrived
// together in one call.
func (c strictConn) receive(to io.Writer, conn *tls.Conn) error {
	buffer, filled := make([]byte, bufferBytes), 0
	for {
		n, end := conn.Read(buffer[filled:])
		filled += n
		more := end == nil && c.arrived.Buffered() > 0
		// A receiver that has everything may have closed the connection; even an empty write would then fail.
		if filled > 0 && (!more || len(buffer)-filled < recordBytes) {
			if _, err := to.Write(buffer[:filled]); err != nil {
				return err
			}
			filled = 0
		}
		switch {
		case end == io.EOF: // without a close_notify, the error is different
			return nil
		case end != nil:
			return end
		}
	}
}
