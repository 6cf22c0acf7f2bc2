// Package session carries NBD between QEMU and a disk server, through TLS.
//
// A session begins with the fencing token, as eight bytes with the highest first. The server answers with one byte. If that
// is 0, what follows is between QEMU and the storage daemon of that token.
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

// Protocol is the name of sessions in the TLS handshake.
const Protocol = "millwright-disks"

// answers are those of the server, and what they mean.
var answers = map[byte]error{0: nil, 1: storage.ErrRevoked, 2: storage.ErrNotOpen}

// Ask begins a session with a token, and reads the answer. Errors: storage.ErrRevoked, storage.ErrNotOpen, or those of the
// connection.
func Ask(conn io.ReadWriter, token storage.Token) error {
	if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(token))); err != nil {
		return fmt.Errorf("beginning a session: %w", err)
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("waiting for the answer of the disk server: %w", err)
	}
	meaning, known := answers[answer[0]]
	if !known {
		return fmt.Errorf("the disk server answers %d, which means nothing", answer[0])
	}
	return meaning
}

// Asked reads the token with which a client begins a session.
func Asked(conn io.Reader) (storage.Token, error) {
	var text [8]byte
	if _, err := io.ReadFull(conn, text[:]); err != nil {
		return 0, fmt.Errorf("reading the token of a session: %w", err)
	}
	return storage.Token(binary.BigEndian.Uint64(text[:])), nil
}

// Answer tells the client whether its session begins: nil, storage.ErrRevoked, or anything else for storage.ErrNotOpen.
func Answer(conn io.Writer, refusal error) error {
	code := byte(2)
	for answer, meaning := range answers {
		if errors.Is(refusal, meaning) {
			code = answer
		}
	}
	_, err := conn.Write([]byte{code})
	return err
}

// Join copies between two connections until one of them ends, or the context, and closes both.
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
