package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/storage"
)

func TestSession_Begin(t *testing.T) {
	const token = storage.Token(0x0102030405060708)
	anyError := errors.New("any")
	respond := func(refusal error) func(net.Conn) { return func(server net.Conn) { _ = Respond(server, refusal) } }
	for name, test := range map[string]struct {
		respond func(server net.Conn)
		want    error
	}{
		"accepted":          {respond(nil), nil},
		"revoked":           {respond(storage.ErrRevoked), storage.ErrRevoked},
		"not open":          {respond(storage.ErrNotOpen), storage.ErrNotOpen},
		"another error":     {respond(errors.New("too many")), storage.ErrNotOpen},
		"closed connection": {func(server net.Conn) { _ = server.Close() }, anyError},
		"another server":    {func(server net.Conn) { _, _ = server.Write([]byte{77}) }, anyError},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := net.Pipe()
			defer func() { _ = client.Close() }()
			go func() {
				got, err := ReadToken(server)
				if err != nil || got != token {
					t.Errorf("asked with token %d, %v; want %d", got, err, token)
				}
				test.respond(server)
			}()
			switch err := Ask(client, token); {
			case test.want == anyError && (err == nil || errors.Is(err, storage.ErrRevoked) || errors.Is(err, storage.ErrNotOpen)):
				t.Errorf("error = %v, want one of the connection", err)
			case test.want != anyError && !errors.Is(err, test.want):
				t.Errorf("error = %v, want %v", err, test.want)
			}
		})
	}
}

func TestSession_IncompleteToken(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		_, _ = client.Write([]byte{1, 2, 3})
		_ = client.Close()
	}()
	if token, err := ReadToken(server); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("token %d, error = %v, want ErrUnexpectedEOF", token, err)
	}
}

// nbd encodes messages of a server.
func nbd(parts ...any) []byte {
	var text []byte
	for _, part := range parts {
		text, _ = binary.Append(text, binary.BigEndian, part)
	}
	return text
}

var hello = nbd(uint64(nbdMagic), uint64(optionMagic), uint16(fixedNewstyle|noZeroes))

func replyOf(kind uint32, data ...any) []byte {
	text := nbd(data...)
	return append(nbd(uint64(replyMagic), uint32(optionInfo), kind, uint32(len(text))), text...)
}

// The server's messages are not trusted, because the server may be another program.
func TestSizes(t *testing.T) {
	size, other, ack := replyOf(replyInfo, uint16(infoExport), uint64(4096), uint16(1)), replyOf(replyInfo, uint16(3), uint64(9)), replyOf(replyAck)
	for name, test := range map[string]struct {
		received []byte
		want     error
	}{
		"a size":                   {slices.Concat(hello, size, ack), nil},
		"with other information":   {slices.Concat(hello, other, size, ack), nil},
		"no such disk":             {slices.Concat(hello, replyOf(replyUnknown)), storage.ErrNoDisk},
		"no size":                  {slices.Concat(hello, ack), errNotNBD},
		"truncated":                {slices.Concat(hello, size[:30]), io.ErrUnexpectedEOF},
		"nothing":                  {nil, io.EOF},
		"another protocol":         {append([]byte("HTTP/1.1 400 Bad Request"), hello...), errNotNBD},
		"an old protocol":          {nbd(uint64(nbdMagic), uint64(0x00420281861253), uint16(0)), errNotNBD},
		"another error":            {slices.Concat(hello, replyOf(1<<31+1)), errNotNBD},
		"a reply that is too long": {slices.Concat(hello, nbd(uint64(replyMagic), uint32(optionInfo), uint32(replyInfo), uint32(1<<31))), errNotNBD},
		"a reply without a type":   {slices.Concat(hello, replyOf(replyInfo, uint8(0))), errNotNBD},
	} {
		t.Run(name, func(t *testing.T) {
			conn := struct {
				io.Reader
				io.Writer
			}{bytes.NewReader(test.received), io.Discard}
			got, err := sizes(conn, []string{Export("")})
			if !errors.Is(err, test.want) || err == nil && !slices.Equal(got, []uint64{4096}) {
				t.Errorf("%v, %v; want %v", got, err, test.want)
			}
		})
	}
}

// FuzzSizes reads arbitrary messages. It must terminate without inventing a size.
func FuzzSizes(f *testing.F) {
	f.Add(slices.Concat(hello, replyOf(replyInfo, uint16(infoExport), uint64(4096), uint16(1)), replyOf(replyAck)))
	f.Add(slices.Concat(hello, replyOf(replyUnknown)))
	f.Fuzz(func(t *testing.T, received []byte) {
		conn := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(received), io.Discard}
		got, err := sizes(conn, []string{Export(""), Export("logs")})
		if err == nil && (len(got) != 2 || len(received) < len(hello)+2*20) {
			t.Errorf("%d bytes were parsed as the sizes %v", len(received), got)
		}
	})
}
