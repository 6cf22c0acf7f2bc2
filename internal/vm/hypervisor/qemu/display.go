package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// displaySocket is the socket of the VNC server. No other user has access to it.
	displaySocket Socket = "display"
	// screenshotFile is the file of a screenshot, in the directory of the sockets.
	screenshotFile Socket = "screenshot.ppm"
	// videoMiB is the memory of the graphics card in MiB. It is sufficient for 1920 x 1080 pixels of 32 bits.
	videoMiB = 8
	// maxPixels is the maximum number of pixels of a screenshot, which needs four bytes of memory for each. In the same
	// memory, modes with fewer than 32 bits per pixel have more pixels.
	maxPixels = 4 << 20
)

// ErrNoDisplay means that the machine has no display. The text is for users.
var ErrNoDisplay = errors.New("the virtual machine has no display; to get one, create it with spec.display: VNC")

// displayArguments describes a graphics card that firmware and common operating systems support, and a pointing device with
// absolute positions, so that the pointers of the viewer and the guest coincide. The machine type has a keyboard. The VNC
// server has no TCP port and no password: only this process can connect to its socket.
func displayArguments(display bool) []string {
	if !display {
		return nil
	}
	return []string{
		"-device", object{"driver": "VGA", "id": "display0", "vgamem_mb": videoMiB}.json(),
		"-device", object{"driver": "qemu-xhci", "id": "usb0"}.json(),
		"-device", object{"driver": "usb-tablet", "id": "tablet0", "bus": "usb0.0"}.json(),
		// With share=ignore, a viewer that requests exclusive access does not disconnect the others.
		"-vnc", "unix:" + displaySocket.path() + ",share=ignore",
	}
}

// DialDisplay connects to the VNC server of the guest's display, which does not authenticate viewers. It returns
// ErrNoDisplay if there is no display.
func (p *Process) DialDisplay(ctx context.Context) (net.Conn, error) {
	if p.screen == nil {
		return nil, ErrNoDisplay
	}
	return p.Dial(ctx, displaySocket)
}

// Screenshot writes a PNG image of the guest's display. Concurrent calls wait for each other. It returns ErrNoDisplay if
// there is no display.
//
// QEMU writes the pixels to a file uncompressed, because the guest does not run while QEMU writes.
func (p *Process) Screenshot(ctx context.Context, out io.Writer) error {
	if p.screen == nil {
		return ErrNoDisplay
	}
	select {
	case p.screen <- struct{}{}:
		defer func() { <-p.screen }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for another screenshot: %w", context.Cause(ctx))
	}
	path, err := p.path(screenshotFile)
	if err != nil {
		return err
	}
	defer os.Remove(path) // also after a failure
	if err := p.monitor.Execute(ctx, "screendump", object{"filename": screenshotFile.path()}, nil); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("reading the screenshot: %w", err)
	}
	defer file.Close()
	picture, err := readPPM(bufio.NewReader(file))
	if err != nil {
		return fmt.Errorf("reading the screenshot: %w", err)
	}
	return png.Encode(out, picture)
}

// readPPM reads an image in the portable pixmap format, as QEMU writes it.
func readPPM(from *bufio.Reader) (image.Image, error) {
	var width, height int
	if _, err := fmt.Fscanf(from, "P6\n%d %d\n255\n", &width, &height); err != nil {
		return nil, fmt.Errorf("the header is invalid: %w", err)
	}
	if width < 1 || height < 1 || width > maxPixels || height > maxPixels/width {
		return nil, fmt.Errorf("the size of %d x %d pixels is invalid", width, height)
	}
	picture := image.NewRGBA(image.Rect(0, 0, width, height))
	const opaque = 0xff
	row := make([]byte, 3*width)
	for y := range height {
		if _, err := io.ReadFull(from, row); err != nil {
			return nil, fmt.Errorf("row %d of %d is incomplete: %w", y, height, err)
		}
		pixels := picture.Pix[y*picture.Stride:]
		for x := range width {
			copy(pixels[4*x:], row[3*x:3*x+3])
			pixels[4*x+3] = opaque
		}
	}
	return picture, nil
}
