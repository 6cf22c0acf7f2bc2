package rfb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// Messages of a viewer.
var (
	update      = []byte{framebufferUpdateRequest, 1, 0, 0, 0, 0, 2, 208, 1, 144}
	key         = []byte{keyEvent, 1, 0, 0, 0, 0, 0, 'a'}
	pointer     = []byte{pointerEvent, 1, 0, 10, 0, 20}
	extendedKey = []byte{qemuMessage, extendedKeyEvent, 0, 1, 0, 0, 0, 'a', 0, 0, 0, 30}
)

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// pixels returns a SetPixelFormat message.
func pixels(bits, trueColor byte, highest uint16, shifts ...byte) []byte {
	message := []byte{setPixelFormat, 0, 0, 0, bits, 24, 0, trueColor}
	for range 3 {
		message = binary.BigEndian.AppendUint16(message, highest)
	}
	return join(message, shifts, []byte{0, 0, 0})
}

// listed returns a SetEncodings message.
func listed(encodings ...int32) []byte {
	message := binary.BigEndian.AppendUint16([]byte{setEncodings, 0}, uint16(len(encodings)))
	for _, encoding := range encodings {
		message = binary.BigEndian.AppendUint32(message, uint32(encoding))
	}
	return message
}

// text returns a ClientCutText message that announces a length.
func text(length uint32, content string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{clientCutText, 0, 0, 0}, length), content...)
}

func TestHandshake(t *testing.T) {
	for name, test := range map[string]struct {
		input   string
		refused bool
	}{
		"3.3":                       {input: "RFB 003.003\n\x01"},
		"3.7":                       {input: "RFB 003.007\n\x01\x00"},
		"3.8":                       {input: "RFB 003.008\n\x01\x01"},
		"a later version":           {input: "RFB 004.001\n\x01\x01", refused: true},
		"not RFB":                   {input: "GET / HTTP/1.1\r\n", refused: true},
		"security type 2, password": {input: "RFB 003.008\n\x02\x01", refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			var server bytes.Buffer
			viewer := strings.NewReader(test.input + "rest")
			err := Handshake(&server, viewer)
			if _, refused := errors.AsType[*Error](err); refused != test.refused || !refused && err != nil {
				t.Fatalf("error = %v, want a refusal: %t", err, test.refused)
			}
			if !test.refused && (server.String() != test.input || viewer.Len() != len("rest")) {
				t.Errorf("the server got %q, and %d bytes are left; want %q", server.Bytes(), viewer.Len(), test.input)
			}
			if test.refused && strings.Contains(server.String(), "\x02") {
				t.Errorf("the server got %q", server.Bytes())
			}
		})
	}
}

// TestMessages_PassesWhatViewersNeed checks that known messages pass, in whatever pieces they arrive, and that clipboard texts
// and unknown encodings do not.
func TestMessages_PassesWhatViewersNeed(t *testing.T) {
	const audio, power, clipboard, desktop = -259, -309, -1063131698, -308
	input := join(
		pixels(32, 1, 255, 16, 8, 0), pixels(8, 0, 7, 99, 99, 99), listed(tight, audio, zrle, power, cursor, clipboard, -28, desktop, -250, raw), listed(),
		update, key, pointer, text(5, "hello"), extendedKey, text(0, ""), update,
	)
	want := join(
		pixels(32, 1, 255, 16, 8, 0), pixels(8, 0, 7, 99, 99, 99), listed(tight, zrle, cursor, -28, -250, raw), listed(),
		update, key, pointer, extendedKey, update,
	)
	for name, reader := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader} {
		var server bytes.Buffer
		if err := Messages(&server, reader(bytes.NewReader(input))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, server.Bytes()); diff != "" {
			t.Errorf("%s: messages (-want +got):\n%s", name, diff)
		}
	}
}

// TestMessages_RefusesEverythingElse checks that the server gets no part of a refused message, and nothing that follows it.
func TestMessages_RefusesEverythingElse(t *testing.T) {
	for name, message := range map[string][]byte{
		"audio":                  {qemuMessage, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"power control":          {250, 0, 1, 2},
		"a resize":               {251, 0, 1, 0, 1, 0, 1, 0},
		"continuous updates":     {150, 1, 0, 0, 0, 0, 0, 9, 0, 9},
		"a fence":                {248, 0, 0, 0, 0, 0, 0, 0, 0},
		"a color map":            {1, 0, 0, 0},
		"too long a text":        text(maxText+1, ""),
		"an extended text":       text(1<<32-4, "text"),
		"too many encodings":     {setEncodings, 0, 1, 1},
		"24-bit pixels":          pixels(24, 1, 255, 16, 8, 0),
		"colors outside":         pixels(16, 1, 255, 16, 8, 0),
		"colors that overlap it": pixels(16, 1, 255, 9, 8, 0),
		"a color of no bits":     pixels(32, 1, 0, 16, 8, 0),
		"a color of some bits":   pixels(32, 1, 254, 16, 8, 0),
	} {
		t.Run(name, func(t *testing.T) {
			var server bytes.Buffer
			err := Messages(&server, bytes.NewReader(join(key, message, bytes.Repeat(key, 300))))
			if _, refused := errors.AsType[*Error](err); !refused {
				t.Errorf("error = %v, want a refusal", err)
			}
			if !bytes.Equal(server.Bytes(), key) {
				t.Errorf("the server got %v, want only the message before", server.Bytes())
			}
		})
	}
}

func TestMessages_Cut(t *testing.T) {
	for _, message := range [][]byte{pixels(32, 1, 255, 16, 8, 0), listed(raw, zrle), update, text(5, "hello"), extendedKey} {
		for length := 1; length < len(message); length++ {
			var server bytes.Buffer
			if err := Messages(&server, bytes.NewReader(message[:length])); !errors.Is(err, io.ErrUnexpectedEOF) || server.Len() > 0 {
				t.Errorf("%v: error = %v, the server got %v", message[:length], err, server.Bytes())
			}
		}
	}
	broken := errors.New("broken")
	if err := Messages(&bytes.Buffer{}, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("error = %v, want the reader's error", err)
	}
}

// FuzzMessages checks that the server gets only whole messages, which the filter would pass unchanged a second time.
func FuzzMessages(f *testing.F) {
	f.Add(join(pixels(32, 1, 255, 16, 8, 0), listed(tight, -259, zrle), update, key, pointer, extendedKey))
	f.Add(join(text(3, "abc"), update))
	f.Add([]byte{setEncodings, 0, 255, 255})
	f.Add([]byte{qemuMessage, 1, 0, 0})
	f.Fuzz(func(t *testing.T, input []byte) {
		var once, twice bytes.Buffer
		_ = Messages(&once, bytes.NewReader(input))
		if once.Len() > len(input) {
			t.Errorf("the server got %d bytes of %d", once.Len(), len(input))
		}
		if err := Messages(&twice, bytes.NewReader(once.Bytes())); err != nil || !bytes.Equal(once.Bytes(), twice.Bytes()) {
			t.Errorf("the server got %v, of which %v would pass: %v", once.Bytes(), twice.Bytes(), err)
		}
	})
}
