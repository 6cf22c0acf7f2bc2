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

// holderVariable makes the test's executable a process that holds a token, with QEMU as its child. The variable
// describes it.
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

// What a holder prints in addition to its guest's output.
const (
	saysPID     = "QEMU: "
	saysState   = "state: "
	saysRefused = "refused: "
	saysRevoked = saysRefused + "revoked"
)

// continueGuest is the line that makes a holder continue its guest. All other lines go to the guest.
const continueGuest = "cont"

// hold runs a guest from a served disk, until QEMU exits.
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
	fmt.Printf("%s%d\n", saysPID, machine.PID())
	client := machine.Console().Attach()
	go relay(machine, client)
	go obey(machine, client)
	if err := machine.Cont(context.Background()); err != nil {
		return err
	}
	for {
		select {
		case <-machine.Done():
			return nil
		case <-machine.Changed():
			if state, err := machine.State(context.Background()); err == nil {
				fmt.Printf("%s%s\n", saysState, state.Status)
			}
		}
	}
}

func (h holding) carrier() session.Carrier {
	siblings := siblingsOf(identity.FromFiles(h.Files, peer(h.Pod), nil, nil))
	return session.Carrier{
		To: h.To, Token: h.Token, Connect: siblings.Connect, Refused: func(err error) {
			if errors.Is(err, storage.ErrRevoked) {
				fmt.Println(saysRevoked)
				return
			}
			fmt.Println(saysRefused + err.Error())
		},
	}
}

// relay prints the guest's output in whole lines.
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

func obey(machine *qemu.Process, client *console.Client) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if lines.Text() == continueGuest {
			_ = machine.Cont(context.Background())
			continue
		}
		_ = client.Write(context.Background(), lines.Bytes())
	}
}

// holder is such a process.
type holder struct {
	t       *testing.T
	process *exec.Cmd
	tell    func(string)
	said    <-chan string
	qemu    int
}

// startHolder starts a process that runs the guest, until the test ends.
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
		_ = command.Process.Kill() // QEMU dies with it
		_ = command.Wait()
	})
	said := make(chan string, 1<<20) // more than it says in a test
	go func() {
		defer close(said)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			said <- lines.Text()
		}
	}()
	started := &holder{t: t, process: command, said: said, tell: func(line string) { _, err := fmt.Fprintln(input, line); must(t, err) }}
	started.qemu, err = strconv.Atoi(strings.TrimPrefix(started.until(saysPID), saysPID))
	must(t, err)
	started.until("boot")
	return started
}

// until returns the next line with one of the prefixes.
func (h *holder) until(beginnings ...string) string {
	h.t.Helper()
	late := time.After(waitTimeout)
	for {
		select {
		case line, ok := <-h.said:
			if !ok {
				h.t.Fatalf("the holder ended before it said any of %q", beginnings)
			}
			for _, beginning := range beginnings {
				if strings.HasPrefix(line, beginning) {
					return line
				}
			}
		case <-late:
			h.t.Fatalf("the holder does not say any of %q", beginnings)
		}
	}
}

// counts waits until the guest has written so many more numbers.
func (h *holder) counts(more int) {
	h.t.Helper()
	for range more {
		h.until("aaaa")
	}
}

// stopsForRevocation waits until the guest has stopped because its token is revoked. It fails if the guest keeps
// writing; some of its output may have been in transit.
func (h *holder) stopsForRevocation() {
	h.t.Helper()
	wanted := map[string]bool{saysRevoked: true, saysState + string(qemu.StorageFailed): true}
	for written := 0; len(wanted) > 0; {
		line := h.until("aaaa", saysRefused, saysState)
		delete(wanted, line)
		if strings.HasPrefix(line, "aaaa") {
			written++
		}
		if written > 1024 {
			h.t.Fatal("the guest of the revoked token writes on")
		}
	}
}

// failure returns what the holder has printed about its storage so far, or an empty string.
func (h *holder) failure() string {
	for {
		select {
		case line := <-h.said:
			if strings.HasPrefix(line, saysRefused) || line == saysState+string(qemu.StorageFailed) {
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
