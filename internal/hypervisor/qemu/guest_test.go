package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience bounds everything that a test waits for on a real QEMU. It is long, since
// it only matters when the test fails.
const patience = time.Minute

// The guests are boot sectors: the firmware loads 512 bytes from the disk to 0x7c00
// and jumps there, in 16 bit mode. They talk to the serial port COM1 at 0x3f8, whose
// line status at 0x3fd says that a byte came (bit 0) and that one may go (bit 5).
type program []byte

// prologue makes data, stack and string direction known.
var prologue = program{
	0xfa,       // 7c00 cli
	0x31, 0xc0, // 7c01 xor ax, ax
	0x8e, 0xd8, // 7c03 mov ds, ax
	0x8e, 0xd0, // 7c05 mov ss, ax
	0xbc, 0x00, 0x7c, // 7c07 mov sp, 0x7c00
	0xfc, // 7c0a cld
}

// putc sends al to the serial port, as soon as that has taken the byte before.
var putc = program{
	0x88, 0xc4, // mov ah, al
	0xba, 0xfd, 0x03, // mov dx, 0x3fd
	0xec,       // again: in al, dx
	0xa8, 0x20, // test al, 0x20
	0x74, 0xfb, // jz again
	0x88, 0xe0, // mov al, ah
	0xba, 0xf8, 0x03, // mov dx, 0x3f8
	0xee, // out dx, al
	0xc3, // ret
}

const (
	counterBanner = "boot\n"
	echoBanner    = "ready\n"
	// powerOffKey makes the echo guest power itself off.
	powerOffKey = "\x04"
)

// counter prints its banner and then counts from zero for ever, one number per line,
// in eight hexadecimal digits written as the letters a to p.
var counter = assemble(counterBanner, prologue, program{
	0xbe, 0x47, 0x7c, // 7c0b mov si, banner
	0xac,       // 7c0e next: lodsb
	0x84, 0xc0, // 7c0f test al, al
	0x74, 0x05, // 7c11 jz count
	0xe8, 0x20, 0x00, // 7c13 call putc
	0xeb, 0xf6, // 7c16 jmp next
	0x66, 0x31, 0xdb, // 7c18 count: xor ebx, ebx
	0xb9, 0x08, 0x00, // 7c1b line: mov cx, 8
	0x66, 0xc1, 0xc3, 0x04, // 7c1e digit: rol ebx, 4
	0x88, 0xd8, // 7c22 mov al, bl
	0x24, 0x0f, // 7c24 and al, 15
	0x04, 'a', // 7c26 add al, 'a'
	0xe8, 0x0b, 0x00, // 7c28 call putc
	0xe2, 0xf1, // 7c2b loop digit
	0xb0, '\n', // 7c2d mov al, '\n'
	0xe8, 0x04, 0x00, // 7c2f call putc
	0x66, 0x43, // 7c32 inc ebx
	0xeb, 0xe5, // 7c34 jmp line
}, putc) // 7c36

// echo prints its banner and then sends back what it gets. It powers off through
// ACPI on powerOffKey, and when the power button is pressed.
var echo = assemble(echoBanner, prologue, program{
	0xba, 0x02, 0x06, // 7c0b mov dx, 0x602: which events count
	0xb8, 0x00, 0x01, // 7c0e mov ax, 0x100: the power button
	0xef,             // 7c11 out dx, ax
	0xbe, 0x57, 0x7c, // 7c12 mov si, banner
	0xac,       // 7c15 next: lodsb
	0x84, 0xc0, // 7c16 test al, al
	0x74, 0x05, // 7c18 jz poll
	0xe8, 0x29, 0x00, // 7c1a call putc
	0xeb, 0xf6, // 7c1d jmp next
	0xba, 0x00, 0x06, // 7c1f poll: mov dx, 0x600: events that happened
	0xed,             // 7c22 in ax, dx
	0xf6, 0xc4, 0x01, // 7c23 test ah, 1
	0x75, 0x15, // 7c26 jnz off
	0xba, 0xfd, 0x03, // 7c28 mov dx, 0x3fd
	0xec,       // 7c2b in al, dx
	0xa8, 0x01, // 7c2c test al, 1
	0x74, 0xef, // 7c2e jz poll
	0xba, 0xf8, 0x03, // 7c30 mov dx, 0x3f8
	0xec,       // 7c33 in al, dx
	0x3c, 0x04, // 7c34 cmp al, powerOffKey
	0x74, 0x05, // 7c36 je off
	0xe8, 0x0b, 0x00, // 7c38 call putc
	0xeb, 0xe2, // 7c3b jmp poll
	0xba, 0x04, 0x06, // 7c3d off: mov dx, 0x604: sleep control
	0xb8, 0x00, 0x20, // 7c40 mov ax, 0x2000: soft off, now
	0xef,       // 7c43 out dx, ax
	0xeb, 0xd9, // 7c44 jmp poll
}, putc) // 7c46

// assemble joins the parts and the banner to a boot sector, with the signature that
// the firmware looks for.
func assemble(banner string, parts ...program) program {
	var sector program
	for _, part := range parts {
		sector = append(sector, part...)
	}
	sector = append(append(sector, banner...), 0)
	sector = append(sector, make(program, 510-len(sector))...)
	return append(sector, 0x55, 0xaa)
}

// requireQEMU gives the program to run. It skips the test only under -short.
func requireQEMU(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real QEMU machines")
	}
	path, err := exec.LookPath(DefaultProgram)
	if err != nil {
		t.Fatalf("%v; run hack/install-qemu.sh", err)
	}
	return path
}

// machine is a small one that boots the guest from a disk in a folder of the test.
func machine(t *testing.T, guest program) Config {
	t.Helper()
	return machineAt(t, filepath.Join(t.TempDir(), "root.raw"), guest)
}

func machineAt(t *testing.T, path string, guest program) Config {
	t.Helper()
	disk := make([]byte, 1<<20)
	copy(disk, guest)
	if err := os.WriteFile(path, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := DiskAt(path)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Name:      "test",
		UUID:      "6b0ff0b6-6a5f-4b8b-9c0a-0d3e5a1f7c21",
		Processor: Processor{Count: 1, Accelerator: TCG},
		MemoryMiB: 32,
		Disks:     Disks{Root: root},
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	return ctx
}

// start runs a machine, with the guest stopped, until the test ends.
func start(t *testing.T, config Config) *Process {
	t.Helper()
	p, err := Start(bounded(t), requireQEMU(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(bounded(t)); err != nil {
			t.Errorf("QEMU is left behind: %v", err)
		}
	})
	return p
}

// boot runs a guest until it has printed its banner.
func boot(t *testing.T, guest program, banner string) (*Process, *reader) {
	t.Helper()
	p := start(t, machine(t, guest))
	console := attach(t, p)
	must(t, p.Cont(bounded(t)))
	console.until(banner)
	return p, console
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reader reads a console in the order of a test's expectations.
type reader struct {
	*ConsoleClient
	t    *testing.T
	rest []byte
}

func attach(t *testing.T, p *Process) *reader {
	client := p.Console().Attach()
	t.Cleanup(client.Close)
	return &reader{ConsoleClient: client, t: t}
}

// until reads up to the text, and gives what came before it.
func (r *reader) until(text string) []byte {
	r.t.Helper()
	ctx := bounded(r.t)
	for {
		if before, after, found := bytes.Cut(r.rest, []byte(text)); found {
			r.rest = after
			return before
		}
		output, err := r.Next(ctx)
		if err != nil {
			r.t.Fatalf("waiting for %q on the console, after %q: %v", text, r.rest, err)
		}
		r.rest = append(r.rest, output...)
	}
}

// numbers reads that many lines of the counter, which must follow each other.
func (r *reader) numbers(count int) (first, last uint64) {
	r.t.Helper()
	for i := range count {
		number := parseNumber(r.t, string(r.until("\n")))
		if i > 0 && number != last+1 {
			r.t.Fatalf("the console says %d after %d: output is lost or repeated", number, last)
		}
		if i == 0 {
			first = number
		}
		last = number
	}
	return first, last
}

func parseNumber(t *testing.T, line string) uint64 {
	t.Helper()
	digits := strings.Map(func(letter rune) rune {
		return rune(fmt.Sprintf("%x", letter-'a')[0])
	}, line)
	number, err := strconv.ParseUint(digits, 16, 32)
	if err != nil || len(line) != 8 {
		t.Fatalf("%q is not a line of the counter", line)
	}
	return number
}
