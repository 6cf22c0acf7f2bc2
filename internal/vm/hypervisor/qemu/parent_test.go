package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// parentVariable makes the test's executable a process that runs a machine and waits until it is killed. The value
// of the variable describes the machine.
const parentVariable = "TEST_QEMU_PARENT"

func TestMain(m *testing.M) {
	if description, set := os.LookupEnv(parentVariable); set {
		beParent(description)
	}
	os.Exit(m.Run())
}

// beParent prints QEMU's PID or an error.
func beParent(description string) {
	var config Config
	err := json.Unmarshal([]byte(description), &config)
	var p *Process
	if err == nil {
		p, err = Start(context.Background(), "", config)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	<-p.Done()
	os.Exit(0)
}

func TestProcess_IsKilledWithParent(t *testing.T) {
	tier.All(t)
	requireQEMU(t)
	config := machine(t, counter)
	description, err := json.Marshal(config)
	must(t, err)
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"="+string(description))
	output, err := parent.StdoutPipe()
	must(t, err)
	must(t, parent.Start())
	line, _ := bufio.NewReader(output).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the parent printed %q, want QEMU's PID", line)
	}
	machine := watchPID(t, pid)
	must(t, parent.Process.Kill())
	_ = parent.Wait() // it was killed
	machine.awaitEnd()
	start(t, config) // the disk is no longer locked
}
