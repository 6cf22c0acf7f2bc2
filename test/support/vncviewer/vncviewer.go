// Package vncviewer is a VNC viewer for tests. It implements the RFB protocol 3.8 (RFC 6143).
package vncviewer

import (
	"encoding/binary"
	"fmt"
	"image"
	"io"
)

// version is the first message of both sides.
const version = "RFB 003.008\n"

// desktopSize is the pseudo-encoding that reports a changed size of the display. The only other encoding is 0, raw pixels.
const desktopSize = -223

// Viewer is a viewer of a display. It is not safe for concurrent use.
type Viewer struct {
	conn    io.ReadWriter
	picture *image.RGBA
}

// New connects to a VNC server that does not authenticate viewers.
func New(conn io.ReadWriter) (*Viewer, error) {
	v := &Viewer{conn: conn}
	// After each of its messages, the viewer waits for a response of known length: the version and the only security type;
	// the result; and the size, the format and the name of the display.
	if _, err := v.exchange(nil, len(version)); err != nil {
		return nil, err
	}
	if _, err := v.exchange([]byte(version), 2); err != nil {
		return nil, err
	}
	const none = 1
	if result, err := v.exchange([]byte{none}, 4); err != nil || binary.BigEndian.Uint32(result) != 0 {
		return nil, fmt.Errorf("the server rejects the viewer with %v (%w)", result, err)
	}
	const shared, described = 1, 24
	display, err := v.exchange([]byte{shared}, described)
	if err != nil {
		return nil, err
	}
	v.resize(display)
	if _, err := v.exchange(nil, int(binary.BigEndian.Uint32(display[described-4:]))); err != nil {
		return nil, err
	}
	size := int32(desktopSize)
	encodings := binary.BigEndian.AppendUint32([]byte{2, 0, 0, 2, 0, 0, 0, 0}, uint32(size))
	// Pixels have four bytes: red, green, blue, and one that is not used.
	_, err = v.exchange(append([]byte{0, 0, 0, 0, 32, 24, 1, 1, 0, 255, 0, 255, 0, 255, 24, 16, 8, 0, 0, 0}, encodings...), 0)
	return v, err
}

// exchange sends a message and reads a number of bytes.
func (v *Viewer) exchange(message []byte, length int) ([]byte, error) {
	if len(message) > 0 {
		if _, err := v.conn.Write(message); err != nil {
			return nil, fmt.Errorf("sending to the VNC server: %w", err)
		}
	}
	response := make([]byte, length)
	if _, err := io.ReadFull(v.conn, response); err != nil {
		return nil, fmt.Errorf("reading from the VNC server: %w", err)
	}
	return response, nil
}

// resize changes the size of the picture to the size in a message.
func (v *Viewer) resize(size []byte) {
	v.picture = image.NewRGBA(image.Rect(0, 0, int(binary.BigEndian.Uint16(size)), int(binary.BigEndian.Uint16(size[2:]))))
}

// Picture requests and returns the whole picture. If the size of the display changes, it waits for a complete picture of the new
// size.
func (v *Viewer) Picture() (image.Image, error) {
	for {
		size := v.picture.Rect.Max
		request := binary.BigEndian.AppendUint16([]byte{3, 0, 0, 0, 0, 0}, uint16(size.X))
		header, err := v.exchange(binary.BigEndian.AppendUint16(request, uint16(size.Y)), 4)
		if err != nil {
			return nil, err
		}
		if header[0] != 0 {
			return nil, fmt.Errorf("the server sent a message of type %d instead of a picture", header[0])
		}
		for range binary.BigEndian.Uint16(header[2:]) {
			if err := v.rectangle(); err != nil {
				return nil, err
			}
		}
		if v.picture.Rect.Max == size {
			return v.picture, nil
		}
	}
}

// rectangle reads a part of the picture, or its new size.
func (v *Viewer) rectangle() error {
	header, err := v.exchange(nil, 12)
	if err != nil {
		return err
	}
	number := func(at int) int { return int(binary.BigEndian.Uint16(header[at:])) }
	x, y, width, height := number(0), number(2), number(4), number(6)
	switch encoding := int32(binary.BigEndian.Uint32(header[8:])); encoding {
	case desktopSize:
		v.resize(header[4:])
		return nil
	case 0:
	default:
		return fmt.Errorf("the server sent the encoding %d", encoding)
	}
	pixels, err := v.exchange(nil, 4*width*height)
	if err != nil {
		return err
	}
	for row := range height {
		copy(v.picture.Pix[v.picture.PixOffset(x, y+row):], pixels[4*width*row:4*width*(row+1)])
	}
	return nil
}

// Type presses and releases a key. key is an X11 keysym; for an ASCII character, it is the character's code.
func (v *Viewer) Type(keysym uint32) error {
	for _, down := range []byte{1, 0} {
		if _, err := v.exchange(binary.BigEndian.AppendUint32([]byte{4, down, 0, 0}, keysym), 0); err != nil {
			return err
		}
	}
	return nil
}

// Pixels returns the number of pixels of a picture that differ from its first one.
func Pixels(picture image.Image) int {
	count, area := 0, picture.Bounds()
	first := rgb(picture, area.Min.X, area.Min.Y)
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			if rgb(picture, x, y) != first {
				count++
			}
		}
	}
	return count
}

func rgb(picture image.Image, x, y int) [3]uint32 {
	r, g, b, _ := picture.At(x, y).RGBA()
	return [3]uint32{r, g, b}
}
