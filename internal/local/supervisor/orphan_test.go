package supervisor

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/local/process"
)

// spawn starts a shell script with a record, and returns after the script has written a line.
func spawn(t *testing.T, script string) (left *process.Process, record string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	must(t, syscall.Mkfifo(log, 0o600))
	reader := value[*os.File](t)(os.OpenFile(log, os.O_RDWR, 0))
	t.Cleanup(func() { reader.Close() })
	record = filepath.Join(dir, "x.json")
	left = value[*process.Process](t)(process.Start(record, process.Command{
		Path: "/bin/sh", Args: []string{"-c", script}, Dir: dir, Log: log,
	}, time.Now()))
	t.Cleanup(func() {
		left.Kill()
		<-left.Ended()
	})
	if _, err := bufio.NewReader(reader).ReadString('\n'); err != nil {
		t.Fatalf("the script did not get going: %v", err)
	}
	return left, record
}

const (
	obedient = `echo up; while :; do sleep 0.1; done`
	stubborn = `trap "" TERM; echo up; while :; do sleep 0.1; done`
)

func TestOrphan_IsTerminated(t *testing.T) {
	for name, script := range map[string]string{"Obedient": obedient, "Stubborn": stubborn} {
		t.Run(name, func(t *testing.T) {
			left, record := spawn(t, script)
			if found := value[bool](t)(EndOrphan(t.Context(), record, 200*time.Millisecond)); !found {
				t.Error("want the process to be found")
			}
			<-left.Ended()
			if _, err := os.Stat(record); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("want the record to be gone, got %v", err)
			}
		})
	}
}

// TestOrphan_ReusedPIDIsIgnored checks that a record without its lock identifies no process.
func TestOrphan_ReusedPIDIsIgnored(t *testing.T) {
	other, record := spawn(t, obedient)
	content := value[[]byte](t)(os.ReadFile(record))
	copied := filepath.Join(t.TempDir(), "x.json")
	must(t, os.WriteFile(copied, content, 0o600))
	if value[bool](t)(EndOrphan(t.Context(), copied, time.Second)) {
		t.Error("want no process to be found")
	}
	select {
	case <-other.Ended():
		t.Error("want the other process to be left alone")
	default:
	}
	if _, err := os.Stat(copied); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("want the record to be gone, got %v", err)
	}
}

func TestOrphan_NotFound(t *testing.T) {
	ended, record := spawn(t, "echo up")
	<-ended.Ended()
	recorded := value[[]byte](t)(os.ReadFile(record))
	for name, content := range map[string]string{"Ended": string(recorded), "Garbage": "{", "NoPID": "{}"} {
		must(t, os.WriteFile(record, []byte(content), 0o600))
		if value[bool](t)(EndOrphan(t.Context(), record, time.Second)) {
			t.Errorf("%s: want nothing to be found", name)
		}
	}
	if value[bool](t)(EndOrphan(t.Context(), record, time.Second)) {
		t.Error("want nothing to be found without a record")
	}
}

func TestOrphan_TerminationCanBeCanceled(t *testing.T) {
	_, record := spawn(t, stubborn)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := EndOrphan(ctx, record, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("want the context's error, got %v", err)
	}
}

func TestChild_LastLogLines(t *testing.T) {
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

// TestChild_LastLogLinesOfPanic checks that only the cause of a panic is shown, without the stacks, and that an earlier
// panic is ignored.
func TestChild_LastLogLinesOfPanic(t *testing.T) {
	const panicked = "1\n2\nno space left on device\npanic: cannot write\n\ngoroutine 1 [running]:\nmain.main()\n\tmain.go:5 +0x1\nmain.x()\n\tmain.go:6 +0x1\n\tmain.go:7 +0x1\n"
	for content, want := range map[string]string{
		panicked:           "1\n2\nno space left on device\npanic: cannot write",
		panicked + "later": "\tmain.go:5 +0x1\nmain.x()\n\tmain.go:6 +0x1\n\tmain.go:7 +0x1\nlater",
		"\tindented":       "indented",
	} {
		p := &Program{LogFile: filepath.Join(t.TempDir(), "log")}
		if err := os.WriteFile(p.LogFile, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := p.lastLines(); got != want {
			t.Errorf("of %q it shows %q, want %q", content, got, want)
		}
	}
}
