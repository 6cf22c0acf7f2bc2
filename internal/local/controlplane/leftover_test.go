package controlplane

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// spawn starts a shell script that writes a line when it is set up.
func spawn(t *testing.T, script string) *process {
	t.Helper()
	command := exec.Command("/bin/sh", "-c", script)
	read, write, err := os.Pipe()
	must(t, err)
	defer read.Close() // a test's end
	command.Stdout = write
	started := value[*process](t)(startProcess(command, 0))
	must(t, write.Close())
	t.Cleanup(func() {
		syscall.Kill(-started.PID(), syscall.SIGKILL) // it has ended then
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

func alive(p *process) bool {
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
			must(t, writeIdentity(path, left.PID()))
			if found := value[bool](t)(endLeftOver(t.Context(), path, 200*time.Millisecond)); !found {
				t.Error("want the process to be found")
			}
			<-left.Ended()
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("want the file to be gone, got %v", err)
			}
		})
	}
}

func TestStrangerWithTheSameNumberIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*identity){
		"LaterStart": func(id *identity) { id.Start-- },
		"OtherBoot":  func(id *identity) { id.Boot = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			stranger := spawn(t, obedient)
			id := value[identity](t)(identify(stranger.PID()))
			change(&id)
			path := filepath.Join(t.TempDir(), "x.json")
			must(t, os.WriteFile(path, value[[]byte](t)(json.Marshal(id)), 0o600))
			if found := value[bool](t)(endLeftOver(t.Context(), path, time.Second)); found || !alive(stranger) {
				t.Error("want the other process to be left alone")
			}
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("want the file to be gone, got %v", err)
			}
		})
	}
}

// TestLeftOversAreNamed: those that live, and no strangers with their numbers.
func TestLeftOversAreNamed(t *testing.T) {
	dir := layout(t.TempDir())
	if names := value[[]string](t)(LeftOvers(string(dir))); len(names) != 0 {
		t.Errorf("an empty folder has %v", names)
	}
	must(t, dir.create())
	left, ended := spawn(t, obedient), spawn(t, "echo up")
	must(t, writeIdentity(dir.pidFile(Etcd), left.PID()))
	<-ended.Ended()
	must(t, os.WriteFile(dir.pidFile(APIServer), value[[]byte](t)(json.Marshal(identity{PID: ended.PID(), Start: 1, Boot: "x"})), 0o600))
	stranger := value[identity](t)(identify(left.PID()))
	stranger.Start--
	must(t, os.WriteFile(dir.pidFile(Scheduler), value[[]byte](t)(json.Marshal(stranger)), 0o600))
	must(t, os.WriteFile(dir.pidFile(ControllerManager), []byte("{"), 0o600))
	if names := value[[]string](t)(LeftOvers(string(dir))); !slices.Equal(names, []string{Etcd}) {
		t.Errorf("want only etcd, got %v", names)
	}
	if !alive(left) {
		t.Error("it was ended")
	}
}

func TestNoLeftOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	ended := spawn(t, "echo up")
	<-ended.Ended()
	if _, err := identify(ended.PID()); !errors.Is(err, errNoProcess) {
		t.Errorf("want no process, got %v", err)
	}
	for name, content := range map[string]string{
		"Ended":   string(value[[]byte](t)(json.Marshal(identity{PID: ended.PID(), Start: 1, Boot: "x"}))),
		"Garbage": "{",
		"NoPID":   "{}",
	} {
		must(t, os.WriteFile(path, []byte(content), 0o600))
		if value[bool](t)(endLeftOver(t.Context(), path, time.Second)) {
			t.Errorf("%s: want nothing to be found", name)
		}
	}
	if value[bool](t)(endLeftOver(t.Context(), path, time.Second)) {
		t.Error("want nothing to be found without a file")
	}
}

func TestEndingALeftOverCanBeGivenUp(t *testing.T) {
	left := spawn(t, stubborn)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := endProcess(ctx, value[identity](t)(identify(left.PID())), time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("want the context's error, got %v", err)
	}
}

func TestParseStat(t *testing.T) {
	rest := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"
	for name, line := range map[string]string{
		"Plain":       "12 (etcd)" + rest,
		"Blanks":      "12 (a b c)" + rest,
		"Parentheses": "12 (a) S 1 (b))" + rest,
	} {
		t.Run(name, func(t *testing.T) {
			state, start, err := parseStat(line)
			if err != nil || state != "S" || start != 4711 {
				t.Errorf("got %q, %d, %v", state, start, err)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (etcd) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20")
	f.Add("12 (etcd")
	f.Add("")
	f.Fuzz(func(t *testing.T, line string) {
		state, _, err := parseStat(line)
		if err == nil && state == "" {
			t.Errorf("no state from %q", line)
		}
	})
}

func TestLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	p := program{logPath: path}
	if got := p.lastLines(); got != "" {
		t.Errorf("want nothing from a missing file, got %q", got)
	}
	must(t, os.WriteFile(path, []byte("1\n2\n3\n4\n5\n6\n7\n"), 0o600))
	if got := p.lastLines(); got != "3\n4\n5\n6\n7" {
		t.Errorf("got %q", got)
	}
	must(t, p.rotate())
	must(t, p.rotate()) // nothing to rotate
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Error(err)
	}
}
