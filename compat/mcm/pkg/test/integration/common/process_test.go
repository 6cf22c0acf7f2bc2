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

// TestStop: nothing that a command has started is left, whatever it does on SIGTERM.
func TestStop(t *testing.T) {
	for name, tc := range map[string]struct {
		command string
		made    bool
		grace   time.Duration
		says    string
	}{
		"in order":      {`sh -c 'exec 3>held; trap "exit 0" TERM; echo up >&3; sleep 1000 & wait'`, false, time.Minute, ""},
		"with a status": {`sh -c 'exec 3>held; trap "exit 3" TERM; echo up >&3; sleep 1000 & wait'`, false, time.Minute, "exit status 3"},
		"not at all":    {`sh -c 'exec 3>held; trap "" TERM; echo up >&3; sleep 1000 & wait'`, false, time.Millisecond, "was killed"},
		// make ends with a status, and does not pass the signal on
		"made":  {`sh -c 'trap "exit 2" TERM; sh -c "exec 9>held; trap \"echo bye >&9; exit\" TERM; echo up >&9; while :; do :; done" & wait'`, true, time.Minute, ""},
		"stuck": {`sh -c 'trap "exit 2" TERM; sh -c "exec 9>held; trap \"\" TERM; echo up >&9; while :; do :; done" & wait'`, true, time.Millisecond, "was killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			before := logs
			logs = "logs"
			t.Cleanup(func() { logs = before })
			// All processes of the command hold it open.
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
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error is %v, want %q", err, tc.says)
			}
			rest, err := io.ReadAll(held) // until nobody holds it
			if err != nil || strings.Contains(string(rest), "bye") != (name == "made") {
				t.Errorf("at the end %q, %v", rest, err)
			}
		})
	}
}

// TestNobodyWaitsForAControllerThatHasEnded: what the suite waits for cannot come any more.
func TestNobodyWaitsForAControllerThatHasEnded(t *testing.T) {
	before := logs
	logs = t.TempDir()
	t.Cleanup(func() { logs = before })
	p, err := start("log", command{line: "false"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.gone
	said := make(chan string, 1)
	gomega.RegisterFailHandler(func(message string, _ ...int) { said <- message })
	t.Cleanup(func() { gomega.RegisterFailHandler(nil) })
	f := &IntegrationTestFramework{timeout: time.Minute, interval: time.Millisecond, processes: []*process{p}}
	f.eventually(func(g gomega.Gomega) { g.Expect("one node").To(gomega.Equal("two nodes")) })
	if message := <-said; !strings.Contains(message, "a controller has ended (exit status 1), see "+p.log) {
		t.Errorf("the suite says: %s", message)
	}
}
