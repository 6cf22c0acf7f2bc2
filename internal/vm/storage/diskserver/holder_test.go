package diskserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/console"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
)

// holderVariable makes the test's executable a process that holds a token and has QEMU as its child. The value of
// the variable describes the process.
const holderVariable = "TEST_DISKS_HOLDER"

func TestMain(m *testing.M) {
	if text, set := os.LookupEnv(holderVariable); set {
		if err := hold(text); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holding describes a process that holds a token.
type holding struct {
	Files identity.Files
	Pod   string
	To    storage.Attachment
	Token storage.Token
	Run   string
}

// Lines that a holder prints in addition to its guest's output.
const (
	pidPrefix     = "QEMU: "
	statePrefix   = "state: "
	refusedPrefix = "refused: "
	revokedLine   = refusedPrefix + "revoked"
)

// continueGuest is a line that makes a holder continue its guest. All other lines are sent to the guest.
const continueGuest = "cont"

// hold runs a guest from a served disk until QEMU exits.
func hold(text string) error {
	var h holding
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return err
	}
	const socket = "disk"
	listener, err := net.Listen("unix", filepath.Join(h.Run, socket))
	if err != nil {
		return err
	}
	go h.carrier().Carry(context.Background(), listener)
	machine, err := qemu.Start(context.Background(), "", qemu.Config{
		Name: h.Pod, Processor: qemu.Processor{Count: 1, Accelerator: qemu.TCG}, MemoryMiB: 32, Sockets: h.Run,
		Disks: qemu.Disks{Root: qemu.Disk{Served: qemu.Served{Socket: socket, Export: "root"}}},
	})
	if err != nil {
		return err
	}
	fmt.Printf("%s%d\n", pidPrefix, machine.PID())
	client := machine.Console().Attach()
	go relay(machine, client)
	go forwardInput(machine, client)
	if err := machine.Cont(context.Background()); err != nil {
		return err
	}
	for {
		select {
		case <-machine.Done():
			return nil
		case <-machine.Changed():
			if state, err := machine.State(context.Background()); err == nil {
				fmt.Printf("%s%s\n", statePrefix, state.Status)
			}
		}
	}
}

func (h holding) carrier() session.Carrier {
	siblings := siblingsOf(identity.FromFiles(h.Files, peer(h.Pod), nil, nil))
	return session.Carrier{
		To: h.To, Token: h.Token, Connect: siblings.Connect, Refused: func(err error) {
			if errors.Is(err, storage.ErrRevoked) {
				fmt.Println(revokedLine)
				return
			}
			fmt.Println(refusedPrefix + err.Error())
		},
	}
}

// relay prints the guest's output line by line.
func relay(_ *qemu.Process, client *console.Client) {
	var rest string
	for {
		output, err := client.Next(context.Background())
		if err != nil {
			return
		}
		rest += string(output)
		end := strings.LastIndex(rest, "\n") + 1
		fmt.Print(rest[:end])
		rest = rest[end:]
	}
}

func forwardInput(machine *qemu.Process, client *console.Client) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == continueGuest {
			_ = machine.Cont(context.Background())
			continue
		}
		_ = client.Write(context.Background(), lines.Bytes())
	}
}

// holder is a process that holds a token.
type holder struct {
	t       *testing.T
	process *exec.Cmd
	send    func(string)
	lines   <-chan string
	qemu    int
}

// startHolder starts a process that runs the guest until the test completes.
func startHolder(t *testing.T, h holding) *holder {
	t.Helper()
	if _, err := exec.LookPath(qemu.DefaultProgram); err != nil {
		t.Fatalf("%v; run hack/install-qemu.sh", err)
	}
	h.Run = directory(t)
	text, err := json.Marshal(h)
	must(t, err)
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), holderVariable+"="+string(text))
	input, err := command.StdinPipe()
	must(t, err)
	output, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill() // QEMU is killed with it
		_ = command.Wait()
	})
	lines := make(chan string, 1<<20) // more lines than in any test
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	started := &holder{t: t, process: command, lines: lines, send: func(line string) { _, err := fmt.Fprintln(input, line); must(t, err) }}
	started.qemu, err = strconv.Atoi(strings.TrimPrefix(started.until(pidPrefix), pidPrefix))
	must(t, err)
	started.until("boot")
	return started
}

// until returns the next line that has one of the prefixes.
func (h *holder) until(prefixes ...string) string {
	h.t.Helper()
	late := time.After(waitTimeout)
	for {
		select {
		case line, ok := <-h.lines:
			if !ok {
				h.t.Fatalf("the holder exited before it printed any of %q", prefixes)
			}
			for _, beginning := range prefixes {
				if strings.HasPrefix(line, beginning) {
					return line
				}
			}
		case <-late:
			h.t.Fatalf("the holder did not print any of %q", prefixes)
		}
	}
}

// counts waits until the guest has written the given number of further numbers.
func (h *holder) counts(more int) {
	h.t.Helper()
	for range more {
		h.until("aaaa")
	}
}

// stopsForRevocation waits until the guest has stopped because its token is revoked. It fails if the guest keeps
// writing. Some of the output may have been in transit.
func (h *holder) stopsForRevocation() {
	h.t.Helper()
	expected := map[string]bool{revokedLine: true, statePrefix + string(qemu.StorageFailed): true}
	for written := 0; len(expected) > 0; {
		line := h.until("aaaa", refusedPrefix, statePrefix)
		delete(expected, line)
		if strings.HasPrefix(line, "aaaa") {
			written++
		}
		if written > 1024 {
			h.t.Fatal("the guest of the revoked token keeps writing")
		}
	}
}

// failure returns what the holder has printed about its storage so far, or an empty string.
func (h *holder) failure() string {
	for {
		select {
		case line := <-h.lines:
			if strings.HasPrefix(line, refusedPrefix) || line == statePrefix+string(qemu.StorageFailed) {
				return line
			}
		default:
			return ""
		}
	}
}

// signal sends a signal to all processes of the holder.
func (h *holder) signal(signal syscall.Signal) {
	h.t.Helper()
	for _, pid := range []int{h.process.Process.Pid, h.qemu} {
		must(h.t, syscall.Kill(pid, signal))
	}
}
