package session

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/millwright-dev/millwright/internal/vm/storage"
)

func TestBeginning(t *testing.T) {
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

func TestTokenThatIsCutOff(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		_, _ = client.Write([]byte{1, 2, 3})
		_ = client.Close()
	}()
	if token, err := Asked(server); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("token %d, error = %v, want ErrUnexpectedEOF", token, err)
	}
}
