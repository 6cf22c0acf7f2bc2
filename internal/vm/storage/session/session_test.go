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
	answer := func(refusal error) func(net.Conn) { return func(server net.Conn) { _ = Answer(server, refusal) } }
	for name, test := range map[string]struct {
		answer func(server net.Conn)
		want   error
	}{
		"it begins":           {answer(nil), nil},
		"revoked":             {answer(storage.ErrRevoked), storage.ErrRevoked},
		"not open":            {answer(storage.ErrNotOpen), storage.ErrNotOpen},
		"something else":      {answer(errors.New("too many")), storage.ErrNotOpen},
		"the server ends":     {func(server net.Conn) { _ = server.Close() }, anyError},
		"a server of another": {func(server net.Conn) { _, _ = server.Write([]byte{77}) }, anyError},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := net.Pipe()
			defer func() { _ = client.Close() }()
			go func() {
				got, err := Asked(server)
				if err != nil || got != token {
					t.Errorf("asked with token %d, %v; want %d", got, err, token)
				}
				test.answer(server)
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
	if token, err := Asked(server); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("token %d, error = %v, want ErrUnexpectedEOF", token, err)
	}
}

// nbd returns the bytes of a server's messages.
func nbd(parts ...any) []byte {
	var text []byte
	for _, part := range parts {
		text, _ = binary.Append(text, binary.BigEndian, part)
	}
	return text
}

var hello = nbd(uint64(nbdMagic), uint64(optionMagic), uint16(fixedNewstyle|noZeroes))

func answerOf(kind uint32, data ...any) []byte {
	text := nbd(data...)
	return append(nbd(uint64(replyMagic), uint32(optionInfo), kind, uint32(len(text))), text...)
}

// The server's messages are not trusted: it may be another program.
func TestSizes(t *testing.T) {
	size, other, ack := answerOf(replyInfo, uint16(infoExport), uint64(4096), uint16(1)), answerOf(replyInfo, uint16(3), uint64(9)), answerOf(replyAck)
	for name, test := range map[string]struct {
		says []byte
		want error
	}{
		"a size":               {slices.Concat(hello, size, ack), nil},
		"with something else":  {slices.Concat(hello, other, size, ack), nil},
		"no such disk":         {slices.Concat(hello, answerOf(replyUnknown)), storage.ErrNoDisk},
		"no size":              {slices.Concat(hello, ack), errNotNBD},
		"cut off":              {slices.Concat(hello, size[:30]), io.ErrUnexpectedEOF},
		"nothing":              {nil, io.EOF},
		"another protocol":     {append([]byte("HTTP/1.1 400 Bad Request"), hello...), errNotNBD},
		"an old one":           {nbd(uint64(nbdMagic), uint64(0x00420281861253), uint16(0)), errNotNBD},
		"another error":        {slices.Concat(hello, answerOf(1<<31+1)), errNotNBD},
		"an endless reply":     {slices.Concat(hello, nbd(uint64(replyMagic), uint32(optionInfo), uint32(replyInfo), uint32(1<<31))), errNotNBD},
		"a reply without type": {slices.Concat(hello, answerOf(replyInfo, uint8(0))), errNotNBD},
	} {
		t.Run(name, func(t *testing.T) {
			conn := struct {
				io.Reader
				io.Writer
			}{bytes.NewReader(test.says), io.Discard}
			got, err := sizes(conn, []string{Export("")})
			if !errors.Is(err, test.want) || err == nil && !slices.Equal(got, []uint64{4096}) {
				t.Errorf("%v, %v; want %v", got, err, test.want)
			}
		})
	}
}

// FuzzSizes reads arbitrary messages: no size is invented, and it terminates.
func FuzzSizes(f *testing.F) {
	f.Add(slices.Concat(hello, answerOf(replyInfo, uint16(infoExport), uint64(4096), uint16(1)), answerOf(replyAck)))
	f.Add(slices.Concat(hello, answerOf(replyUnknown)))
	f.Fuzz(func(t *testing.T, says []byte) {
		conn := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(says), io.Discard}
		got, err := sizes(conn, []string{Export(""), Export("logs")})
		if err == nil && (len(got) != 2 || len(says) < len(hello)+2*20) {
			t.Errorf("%d bytes are the sizes %v", len(says), got)
		}
	})
}
