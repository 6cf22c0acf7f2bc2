// Package session carries NBD between QEMU and a disk server, through TLS.
//
// A session starts with the fencing token, as eight bytes in big-endian order. The server responds with one byte.
// If that byte is 0, QEMU and the storage daemon of that token exchange everything that follows.
package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// Protocol is the name of the session protocol in the TLS handshake.
const Protocol = "millwright-disks"

// responses are the possible responses of the server and their meanings.
var responses = map[byte]error{0: nil, 1: storage.ErrRevoked, 2: storage.ErrNotOpen}

// Ask starts a session with a token and reads the response. Errors: storage.ErrRevoked, storage.ErrNotOpen, or
// those of the connection.
func Ask(conn io.ReadWriter, token storage.Token) error {
	if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(token))); err != nil {
		return fmt.Errorf("beginning a session: %w", err)
	}
	var response [1]byte
	if _, err := io.ReadFull(conn, response[:]); err != nil {
		return fmt.Errorf("waiting for the response of the disk server: %w", err)
	}
	meaning, known := responses[response[0]]
	if !known {
		return fmt.Errorf("unknown response %d from the disk server", response[0])
	}
	return meaning
}

// ReadToken reads the token with which a client starts a session.
func ReadToken(conn io.Reader) (storage.Token, error) {
	var text [8]byte
	if _, err := io.ReadFull(conn, text[:]); err != nil {
		return 0, fmt.Errorf("reading the token of a session: %w", err)
	}
	return storage.Token(binary.BigEndian.Uint64(text[:])), nil
}

// Respond sends the response for an error: nil, storage.ErrRevoked, or storage.ErrNotOpen for any other error.
func Respond(conn io.Writer, refusal error) error {
	code := byte(2)
	for response, meaning := range responses {
		if errors.Is(refusal, meaning) {
			code = response
		}
	}
	_, err := conn.Write([]byte{code})
	return err
}

// Join copies between two connections until one of them is closed or the context is canceled. It then closes both.
func Join(ctx context.Context, one, other net.Conn) {
	end := func() { _, _ = one.Close(), other.Close() }
	defer context.AfterFunc(ctx, end)()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer end()
		_, _ = io.Copy(one, other)
	}()
	_, _ = io.Copy(other, one)
	end()
	<-done
}
