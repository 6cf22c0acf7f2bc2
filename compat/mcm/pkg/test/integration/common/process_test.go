package common

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// TestStop_TerminatesAllProcesses: no process that a command has started remains, regardless of how it handles SIGTERM.
func TestStop_TerminatesAllProcesses(t *testing.T) {
	for name, tc := range map[string]struct {
		command string
		made    bool
		grace   time.Duration
		want    string
	}{
		"in order":      {`sh -c 'exec 3>held; trap "exit 0" TERM; echo up >&3; sleep 1000 & wait'`, false, time.Minute, ""},
		"with a status": {`sh -c 'exec 3>held; trap "exit 3" TERM; echo up >&3; sleep 1000 & wait'`, false, time.Minute, "exit status 3"},
		"not at all":    {`sh -c 'exec 3>held; trap "" TERM; echo up >&3; sleep 1000 & wait'`, false, time.Millisecond, "was killed"},
		// make exits with a status and does not forward the signal
		"made":  {`sh -c 'trap "exit 2" TERM; sh -c "exec 9>held; trap \"echo bye >&9; exit\" TERM; echo up >&9; while :; do :; done" & wait'`, true, time.Minute, ""},
		"stuck": {`sh -c 'trap "exit 2" TERM; sh -c "exec 9>held; trap \"\" TERM; echo up >&9; while :; do :; done" & wait'`, true, time.Millisecond, "was killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			before := logs
			logs = "logs"
			t.Cleanup(func() { logs = before })
			// All processes of the command keep it open.
			if err := syscall.Mkfifo("held", 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := start("log", command{line: tc.command, made: tc.made})
			if err != nil {
				t.Fatal(err)
			}
			held, err := os.Open("held")
			if err != nil {
				t.Fatal(err)
			}
			defer held.Close()
			if _, err := io.ReadFull(held, make([]byte, len("up\n"))); err != nil {
				t.Fatal(err)
			}
			err = p.stop(tc.grace)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
			rest, err := io.ReadAll(held) // until no process has it open
			if err != nil || strings.Contains(string(rest), "bye") != (name == "made") {
				t.Errorf("got output %q, %v", rest, err)
			}
		})
	}
}

// TestWait_FailsWhenControllerHasExited: waits of the suite fail when a controller has exited.
func TestWait_FailsWhenControllerHasExited(t *testing.T) {
	before := logs
	logs = t.TempDir()
	t.Cleanup(func() { logs = before })
	p, err := start("log", command{line: "false"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.gone
	messages := make(chan string, 1)
	gomega.RegisterFailHandler(func(message string, _ ...int) { messages <- message })
	t.Cleanup(func() { gomega.RegisterFailHandler(nil) })
	f := &IntegrationTestFramework{timeout: time.Minute, interval: time.Millisecond, processes: []*process{p}}
	f.eventually(func(g gomega.Gomega) { g.Expect("one node").To(gomega.Equal("two nodes")) })
	if message := <-messages; !strings.Contains(message, "a controller exited (exit status 1); see "+p.log) {
		t.Errorf("got failure message: %s", message)
	}
}
