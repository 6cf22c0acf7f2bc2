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

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
)

// waitTimeout limits every wait for a real QEMU. It is long, because it is reached only if the test fails.
const waitTimeout = 5 * time.Minute

// The first output of the guests in ../testdata, and the input that makes echo power itself off.
const (
	counterBanner = "boot\n"
	echoBanner    = "ready\n"
	powerOffKey   = "\x04"
)

var counter, echo = bootSector("counter"), bootSector("echo")

func bootSector(name string) []byte {
	content, err := os.ReadFile(filepath.Join("..", "testdata", name+".img"))
	if err != nil {
		panic(err)
	}
	return content
}

// requireQEMU returns the program to run. It skips the test only with -short.
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

// machine returns a small machine that boots the guest from a disk in a directory of the test.
func machine(t *testing.T, guest []byte) Config {
	t.Helper()
	return machineAt(t, filepath.Join(t.TempDir(), "root.raw"), guest)
}

func machineAt(t *testing.T, path string, guest []byte) Config {
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

// start runs a machine with the guest stopped until the test completes.
func start(t *testing.T, config Config) *Process {
	t.Helper()
	return startWith(t, requireQEMU(t), config)
}

func startWith(t *testing.T, program string, config Config) *Process {
	t.Helper()
	p, err := Start(bounded(t), program, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(bounded(t)); err != nil {
			t.Errorf("QEMU is still running: %v", err)
		}
	})
	return p
}

// runState returns QEMU's name for the state of the machine.
func runState(t *testing.T, p *Process) string {
	t.Helper()
	var response struct{ Status string }
	must(t, p.Monitor().Execute(bounded(t), "query-status", nil, &response))
	return response.Status
}

// boot runs a guest until it has printed its banner.
func boot(t *testing.T, guest []byte, banner string) (*Process, *reader) {
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
	*console.Client
	t    *testing.T
	rest []byte
}

func attach(t *testing.T, p *Process) *reader {
	client := p.Console().Attach()
	t.Cleanup(client.Close)
	return &reader{Client: client, t: t}
}

// until reads up to the text and returns what precedes it.
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

// numbers reads the given number of lines of the counter, which must be consecutive.
func (r *reader) numbers(count int) (first, last uint64) {
	r.t.Helper()
	for i := range count {
		number := parseNumber(r.t, string(r.until("\n")))
		if i > 0 && number != last+1 {
			r.t.Fatalf("the console has %d after %d: output was lost or repeated", number, last)
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
