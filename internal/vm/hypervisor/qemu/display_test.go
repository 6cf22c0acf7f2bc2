package qemu

import (
	"bufio"
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/png"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
	"github.com/millwright-dev/millwright/test/support/vncviewer"
)

// typist is a boot sector that writes ">" to the screen and to the serial port, and then each key that is typed.
var typist = append([]byte{
	0xb0, '>', // mov al, '>'
	0xba, 0xf8, 0x03, 0xee, // mov dx, 0x3f8; out dx, al
	0xb4, 0x0e, 0xbb, 0x07, 0x00, 0xcd, 0x10, // mov ah, 0x0e; mov bx, 7; int 0x10
	0xb4, 0x00, 0xcd, 0x16, // mov ah, 0; int 0x16
	0xeb, 0xef, // jmp to the second instruction
}, append(make([]byte, 510-19), 0x55, 0xaa)...)

func TestReadPPM(t *testing.T) {
	picture, err := readPPM(bufio.NewReader(strings.NewReader("P6\n2 1\n255\nabcdef")))
	must(t, err)
	if picture.Bounds() != image.Rect(0, 0, 2, 1) || picture.At(0, 0) != (color.RGBA{'a', 'b', 'c', 255}) || picture.At(1, 0) != (color.RGBA{'d', 'e', 'f', 255}) {
		t.Errorf("picture = %+v", picture)
	}
	for name, text := range map[string]string{
		"empty":           "",
		"another format":  "P5\n2 1\n255\nab",
		"other colors":    "P6\n2 1\n65535\nabcdefabcdef",
		"no size":         "P6\n0 1\n255\n",
		"a negative size": "P6\n-2 -1\n255\nabcdef",
		"too wide":        "P6\n4194305 1\n255\n",
		"too many pixels": "P6\n2049 2048\n255\n",
		"an overflow":     "P6\n4194304 4194304\n255\n",
		"too short":       "P6\n2 1\n255\nabcde",
	} {
		if _, err := readPPM(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDisplay_RequiresDevice(t *testing.T) {
	p := &Process{}
	if _, err := p.DialDisplay(bounded(t)); !errors.Is(err, ErrNoDisplay) {
		t.Errorf("DialDisplay = %v, want ErrNoDisplay", err)
	}
	if err := p.Screenshot(bounded(t), io.Discard); !errors.Is(err, ErrNoDisplay) {
		t.Errorf("Screenshot = %v, want ErrNoDisplay", err)
	}
}

// screenshot returns an image of the display.
func screenshot(t *testing.T, p *Process) image.Image {
	t.Helper()
	var file bytes.Buffer
	must(t, p.Screenshot(bounded(t), &file))
	picture, err := png.Decode(&file)
	must(t, err)
	return picture
}

// TestDisplay_ShowsAndTypes checks that a viewer shows the guest's text and passes keys to the guest. A screenshot must show
// the same as the viewer, and leave no file. The guest's output on the serial port must be the same as without a display.
func TestDisplay_ShowsAndTypes(t *testing.T) {
	tier.All(t)
	config := machine(t, typist)
	config.Display, config.Sockets = true, t.TempDir()
	p := start(t, config)
	serial := attach(t, p)
	must(t, p.Cont(bounded(t)))
	serial.until("Booting from Hard Disk")
	serial.until(">")
	conn, err := p.DialDisplay(bounded(t))
	must(t, err)
	defer conn.Close()
	viewer, err := vncviewer.New(conn)
	must(t, err)
	before, err := viewer.Picture()
	must(t, err)
	if lit := vncviewer.Pixels(before); lit < 100 {
		t.Errorf("%d pixels are lit, want the text of the firmware", lit)
	}
	before = screenshot(t, p)
	must(t, viewer.Type('q'))
	serial.until("q")
	// The guest has written the key to the screen before it accepts the next one.
	must(t, viewer.Type('w'))
	serial.until("w")
	after, err := viewer.Picture()
	must(t, err)
	if vncviewer.Pixels(after) <= vncviewer.Pixels(before) {
		t.Errorf("%d pixels are lit after a key, and %d before", vncviewer.Pixels(after), vncviewer.Pixels(before))
	}
	if size := screenshot(t, p).Bounds(); size != after.Bounds() {
		t.Errorf("the screenshot is %v, and the viewer's picture %v", size, after.Bounds())
	}
	entries, err := os.ReadDir(config.Sockets)
	must(t, err)
	if len(entries) != 1 || entries[0].Name() != string(displaySocket) || entries[0].Type() != os.ModeSocket {
		t.Errorf("files = %v, want only the socket", entries)
	}
}

// TestArguments_DisplayIsOnlyASocket checks that QEMU has one socket for viewers, and no TCP port.
func TestArguments_DisplayIsOnlyASocket(t *testing.T) {
	args := arguments(everything())
	if got := after(args, "-vnc", 0); got != "unix:/proc/self/fd/9/display,share=ignore" || after(args, "-vnc", 1) != "" {
		t.Errorf("-vnc = %q", got)
	}
	if args := arguments(minimal()); slices.Contains(args, "-vnc") || strings.Contains(strings.Join(args, " "), "VGA") {
		t.Errorf("a machine without a display has the arguments %q", args)
	}
}
