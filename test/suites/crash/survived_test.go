package crash

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// survivedFile is a file that records which crash points were survived, so that an interrupted exploration can
// continue. It is valid for one build of this test, which contains the manager.
const survivedFile = "MILLWRIGHT_SURVIVED"

// survived contains the crash points that were survived. A nil value is empty, and records none.
type survived struct {
	before map[string]bool

	mu   sync.Mutex
	file *os.File
}

// readSurvived reads the file that the environment specifies, if any.
func readSurvived(t *testing.T) *survived {
	t.Helper()
	path := os.Getenv(survivedFile)
	if path == "" {
		return nil
	}
	build, err := digest()
	if err != nil {
		t.Fatal(err)
	}
	s, err := openSurvived(path, build)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d crash points of this build were survived before, and are in %s", len(s.before), path)
	t.Cleanup(func() {
		if err := s.file.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// openSurvived opens a file whose first line identifies a build. If it is a different build, or the file is
// empty, the file is truncated. An incomplete line is ignored.
func openSurvived(path, build string) (*survived, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	s := &survived{before: map[string]bool{}, file: file}
	reader, kept := bufio.NewReader(file), 0
	for first := true; ; first = false {
		line, err := reader.ReadString('\n')
		if err != nil || first && line != build+"\n" {
			break
		}
		kept += len(line)
		if !first {
			s.before[line[:len(line)-1]] = true
		}
	}
	if err := file.Truncate(int64(kept)); err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	if kept == 0 {
		_, err = fmt.Fprintln(file, build)
	}
	return s, err
}

// digest returns the digest of the running program.
func digest() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	program, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer program.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, program); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func nameOf(s scenario, c crash) string { return s.name + ": " + c.String() }

// has reports whether a crash point was survived in an earlier run.
func (s *survived) has(of scenario, c crash) bool { return s != nil && s.before[nameOf(of, c)] }

// note records that a crash point was survived.
func (s *survived) note(t *testing.T, of scenario, c crash) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.file, nameOf(of, c)); err != nil {
		t.Error(err)
	}
}

// TestSurvived_IsKeptPerBuild checks that complete lines of the same build are kept.
func TestSurvived_IsKeptPerBuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "survived")
	of, c := scenario{name: "create"}, func(n int) crash {
		return crash{point: point{operation{"api", "patch", "machines"}, n}, way: before}
	}
	open := func(build string) *survived {
		s, err := openSurvived(path, build)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.file.Close() })
		return s
	}
	s := open("one")
	s.note(t, of, c(1))
	if s.has(of, c(1)) {
		t.Error("a crash point of this run counts as survived before it")
	}
	if _, err := fmt.Fprint(s.file, nameOf(of, c(2))); err != nil { // and the process is killed
		t.Fatal(err)
	}
	s = open("one")
	if !s.has(of, c(1)) || s.has(of, c(2)) || s.has(scenario{name: "delete"}, c(1)) {
		t.Errorf("survived are %v", s.before)
	}
	s.note(t, of, c(2))
	if s = open("one"); len(s.before) != 2 {
		t.Errorf("survived are %v", s.before)
	}
	if s = open("another"); len(s.before) != 0 {
		t.Errorf("survived with another build are %v", s.before)
	}
	if s = open("one"); len(s.before) != 0 {
		t.Errorf("survived after another build are %v", s.before)
	}
}
