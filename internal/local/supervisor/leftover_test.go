package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/local/proc"
)

// spawn starts a shell script that writes a line when it is set up.
func spawn(t *testing.T, script string) *osProcess {
	t.Helper()
	command := exec.Command("/bin/sh", "-c", script)
	read, write, err := os.Pipe()
	must(t, err)
	defer read.Close() // a test's end
	command.Stdout = write
	started := value[*osProcess](t)(startProcess(command, 0))
	must(t, write.Close())
	t.Cleanup(func() {
		syscall.Kill(-pid(started), syscall.SIGKILL) // it has ended then
		<-started.Ended()
	})
	if _, err := bufio.NewReader(read).ReadString('\n'); err != nil {
		t.Fatalf("the script did not get going: %v", err)
	}
	return started
}

const (
	obedient = `echo up; while :; do sleep 0.1; done`
	stubborn = `trap "" TERM; echo up; while :; do sleep 0.1; done`
)

func alive(p *osProcess) bool {
	select {
	case <-p.Ended():
		return false
	default:
		return true
	}
}

func TestLeftOverIsEnded(t *testing.T) {
	for name, script := range map[string]string{"Obedient": obedient, "Stubborn": stubborn} {
		t.Run(name, func(t *testing.T) {
			left := spawn(t, script)
			path := filepath.Join(t.TempDir(), "x.json")
			must(t, writeIdentity(path, pid(left)))
			if found := value[bool](t)(EndLeftOver(t.Context(), path, 200*time.Millisecond)); !found {
				t.Error("want the process to be found")
			}
			<-left.Ended()
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("want the file to be gone, got %v", err)
			}
		})
	}
}

func TestOtherProcessWithTheSameNumberIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*identity){
		"LaterStart": func(id *identity) { id.Start-- },
		"OtherBoot":  func(id *identity) { id.Boot = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			other := spawn(t, obedient)
			id := value[identity](t)(identify(pid(other)))
			change(&id)
			path := filepath.Join(t.TempDir(), "x.json")
			must(t, os.WriteFile(path, value[[]byte](t)(json.Marshal(id)), 0o600))
			if found := value[bool](t)(EndLeftOver(t.Context(), path, time.Second)); found || !alive(other) {
				t.Error("want the other process to be left alone")
			}
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("want the file to be gone, got %v", err)
			}
		})
	}
}

// TestIsRunning: only what lives, and no other process with its number.
func TestIsRunning(t *testing.T) {
	dir := t.TempDir()
	left, ended := spawn(t, obedient), spawn(t, "echo up")
	<-ended.Ended()
	other := value[identity](t)(identify(pid(left)))
	other.Start--
	for name, test := range map[string]struct {
		content []byte
		want    bool
	}{
		"Running":     {encoded(t, value[identity](t)(identify(pid(left)))), true},
		"Ended":       {encoded(t, identity{PID: pid(ended), Start: 1, Boot: "x"}), false},
		"OtherStart":  {encoded(t, other), false},
		"HalfWritten": {[]byte("{"), false},
	} {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, test.content, 0o600))
		if got := value[bool](t)(IsRunning(path)); got != test.want {
			t.Errorf("%s: running is %t", name, got)
		}
	}
	if value[bool](t)(IsRunning(filepath.Join(dir, "none"))) {
		t.Error("a process without a file runs")
	}
	if !alive(left) {
		t.Error("it was ended")
	}
}

func encoded(t *testing.T, id identity) []byte {
	t.Helper()
	return value[[]byte](t)(json.Marshal(id))
}

func pid(p *osProcess) int { return p.command.Process.Pid }

func TestNoLeftOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	ended := spawn(t, "echo up")
	<-ended.Ended()
	if _, err := identify(pid(ended)); !errors.Is(err, proc.ErrNotFound) {
		t.Errorf("want no process, got %v", err)
	}
	for name, content := range map[string]string{
		"Ended":   string(value[[]byte](t)(json.Marshal(identity{PID: pid(ended), Start: 1, Boot: "x"}))),
		"Garbage": "{",
		"NoPID":   "{}",
	} {
		must(t, os.WriteFile(path, []byte(content), 0o600))
		if value[bool](t)(EndLeftOver(t.Context(), path, time.Second)) {
			t.Errorf("%s: want nothing to be found", name)
		}
	}
	if value[bool](t)(EndLeftOver(t.Context(), path, time.Second)) {
		t.Error("want nothing to be found without a file")
	}
}

func TestEndingALeftOverCanBeGivenUp(t *testing.T) {
	left := spawn(t, stubborn)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := end(ctx, value[*os.Process](t)(proc.Open(pid(left))), time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("want the context's error, got %v", err)
	}
}

func TestLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	p := &Program{LogFile: path}
	if got := p.lastLines(); got != "" {
		t.Errorf("want nothing from a missing file, got %q", got)
	}
	must(t, os.WriteFile(path, []byte("1\n2\n3\n4\n5\n6\n7\n"), 0o600))
	if got := p.lastLines(); got != "3\n4\n5\n6\n7" {
		t.Errorf("got %q", got)
	}
	value[*Child](t)(New(*p))
	value[*Child](t)(New(*p)) // nothing to rotate
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Error(err)
	}
}
