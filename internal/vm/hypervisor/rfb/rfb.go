// Package rfb filters what VNC viewers send to a VNC server.
//
// Viewers and servers use the RFB protocol (RFC 6143). QEMU's server supports many of its extensions, such as audio,
// clipboards and power control, and its parser runs in the process of the guest. The filter passes only the messages that a
// viewer needs to show the screen and to type, each as a whole. It does not filter the messages of the server.
package rfb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	// securityNone is the security type without authentication, the only one that the server offers.
	securityNone = 1
	// maxEncodings is the maximum number of encodings in a message. Viewers send up to about 40.
	maxEncodings = 256
	// maxText is the maximum length of a clipboard text, in bytes.
	maxText = 1 << 20
)

// Error means that a viewer has sent something that the filter does not pass. Its text is for users.
type Error struct{ problem string }

// Error implements error.
func (e *Error) Error() string { return e.problem }

func refuse(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Handshake passes the viewer's side of the handshake, up to the ClientInit message. Errors: *Error, and those of the reader
// and the writer.
func Handshake(server io.Writer, viewer io.Reader) error {
	version := make([]byte, len("RFB 003.008\n"))
	if _, err := io.ReadFull(viewer, version); err != nil {
		return err
	}
	length := 2 // the security type, and ClientInit
	switch string(version) {
	case "RFB 003.003\n":
		length = 1 // the server chooses the security type
	case "RFB 003.007\n", "RFB 003.008\n":
	default:
		return refuse("the viewer did not send a supported version of the RFB protocol: 3.3, 3.7 or 3.8")
	}
	if _, err := server.Write(version); err != nil {
		return err
	}
	rest := make([]byte, length)
	for i := range rest {
		// After each of these bytes, the viewer waits for the server.
		if _, err := io.ReadFull(viewer, rest[i:i+1]); err != nil {
			return err
		}
		if i+1 < length && rest[i] != securityNone {
			return refuse("the viewer requires security type %d; only type %d, without authentication, is supported", rest[i], securityNone)
		}
		if _, err := server.Write(rest[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

// Types of messages, from RFC 6143.
const (
	setPixelFormat           = 0
	setEncodings             = 2
	framebufferUpdateRequest = 3
	keyEvent                 = 4
	pointerEvent             = 5
	clientCutText            = 6
	// qemuMessage is the type of QEMU's own messages, whose second byte is their subtype.
	qemuMessage = 255
	// extendedKeyEvent is a key event with the scan code of the key, which does not depend on keyboard layouts.
	extendedKeyEvent = 0
)

// lengths are the lengths of messages, by type. For messages of variable length, it is the length of the first part, which
// contains the length of the rest.
var lengths = map[byte]int{
	setPixelFormat: 20, setEncodings: 4, framebufferUpdateRequest: 10, keyEvent: 8, pointerEvent: 6, clientCutText: 8, qemuMessage: 12,
}

// Messages passes the messages that a viewer sends after the handshake. It returns nil if the viewer closes its side after a
// whole message. Errors: *Error, io.ErrUnexpectedEOF, and those of the reader and the writer.
func Messages(server io.Writer, viewer io.Reader) error {
	for {
		var kind [1]byte
		if _, err := io.ReadFull(viewer, kind[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		length, known := lengths[kind[0]]
		if !known {
			return refuse("the viewer sent a message of type %d, which is not supported", kind[0])
		}
		message := append(make([]byte, 0, length), kind[0])
		message, err := extend(message, viewer, length)
		if err != nil {
			return err
		}
		if message, err = pass(message, viewer); err != nil {
			return err
		}
		if _, err := server.Write(message); err != nil {
			return err
		}
	}
}

// extend reads more of a message, until it has the given length.
func extend(message []byte, viewer io.Reader, length int) ([]byte, error) {
	has := len(message)
	message = slices.Grow(message, length-has)[:length]
	if _, err := io.ReadFull(viewer, message[has:]); errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	} else if err != nil {
		return nil, err
	}
	return message, nil
}

// pass reads the rest of a message, and returns what the server gets for it.
func pass(message []byte, viewer io.Reader) ([]byte, error) {
	switch message[0] {
	case setPixelFormat:
		return message, checkPixelFormat(message[4:])
	case setEncodings:
		return encodings(message, viewer)
	case clientCutText:
		return nil, discardText(message, viewer)
	case qemuMessage:
		if message[1] != extendedKeyEvent {
			return nil, refuse("the viewer sent a message of type %d.%d, which is not supported", message[0], message[1])
		}
	}
	return message, nil
}

// checkPixelFormat returns an error for an invalid format, because the server calculates with its numbers.
func checkPixelFormat(format []byte) error {
	bits, trueColor := format[0], format[3] != 0
	if bits != 8 && bits != 16 && bits != 32 {
		return refuse("the viewer requires pixels of %d bits; supported are 8, 16 and 32", bits)
	}
	if !trueColor {
		return nil // the server uses a color map, and ignores the other numbers
	}
	for i, color := range []string{"red", "green", "blue"} {
		highest, shift := binary.BigEndian.Uint16(format[4+2*i:]), format[10+i]
		if highest == 0 || highest&(highest+1) != 0 || shift >= bits || uint64(highest)<<shift >= 1<<bits {
			return refuse("the viewer requires an invalid pixel format: %d is the highest value of %s, at bit %d of %d", highest, color, shift, bits)
		}
	}
	return nil
}

// Encodings that are passed on. Others, such as those for audio, power control and clipboards, make the server accept or send
// additional types of messages.
const (
	raw               = 0
	copyRect          = 1
	hextile           = 5
	zlib              = 6
	tight             = 7
	zrle              = 16
	maxQuality        = -23
	minQuality        = -32
	desktopSize       = -223
	cursor            = -239
	maxCompression    = -247
	minCompression    = -256
	pointerTypeChange = -257
	extendedKeys      = -258
	ledState          = -261
)

func isKnown(encoding int32) bool {
	switch encoding {
	case raw, copyRect, hextile, zlib, tight, zrle, desktopSize, cursor, pointerTypeChange, extendedKeys, ledState:
		return true
	}
	return encoding >= minQuality && encoding <= maxQuality || encoding >= minCompression && encoding <= maxCompression
}

// encodings returns a SetEncodings message without the unknown encodings.
func encodings(message []byte, viewer io.Reader) ([]byte, error) {
	count := int(binary.BigEndian.Uint16(message[2:]))
	if count > maxEncodings {
		return nil, refuse("the viewer sent a list of %d encodings; at most %d are supported", count, maxEncodings)
	}
	const size = 4
	header := len(message)
	message, err := extend(message, viewer, header+size*count)
	if err != nil {
		return nil, err
	}
	known := bytes.Clone(message[:header])
	for each := range slices.Chunk(message[header:], size) {
		if isKnown(int32(binary.BigEndian.Uint32(each))) {
			known = append(known, each...)
		}
	}
	binary.BigEndian.PutUint16(known[2:], uint16((len(known)-header)/size))
	return known, nil
}

// discardText reads a clipboard text. The guest cannot receive it, but the server would send it to the other viewers.
func discardText(message []byte, viewer io.Reader) error {
	length := binary.BigEndian.Uint32(message[4:])
	if length > maxText {
		return refuse("the viewer sent a clipboard text of %d bytes; at most %d are supported", length, maxText)
	}
	if _, err := io.CopyN(io.Discard, viewer, int64(length)); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	return nil
}
