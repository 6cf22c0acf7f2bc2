package cluster

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/smallfs"
)

// TestLogFile_DiskFull checks that log lines are dropped on a full disk, and that the terminal reports the
// beginning and the end of this once each.
func TestLogFile_DiskFull(t *testing.T) {
	t.Attr("fault", "The disk is full while \"millwright up\" writes its log")
	fs := smallfs.New(t)
	var terminal bytes.Buffer
	path := fs.Path("millwright.log")
	log, err := (&upFlags{logFile: path}).openLog(&terminal)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	line := []byte(strings.Repeat("x", os.Getpagesize()*2/3) + "\n")
	write := func() error { _, err := log.Write(line); return err }
	if err := write(); err != nil || terminal.Len() > 0 {
		t.Fatalf("with free space: %v, %s", err, &terminal)
	}
	fs.Fill(0)
	for range 3 {
		smallfs.WantNoSpace(t, write(), path)
	}
	lines := strings.Split(terminal.String(), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "write "+path+": no space left on device") {
		t.Errorf("the terminal shows %q", lines)
	}
	terminal.Reset()
	fs.FreeSpace()
	for range 2 {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	if lines := strings.Split(terminal.String(), "\n"); len(lines) != 2 || !strings.Contains(lines[0], path) {
		t.Errorf("the terminal shows %q when there is free space", lines)
	}
	wantWhole(t, path, line, 3)
	t.Attr("outcome", "The terminal shows one message that names the file, and another one when logging resumes; \"millwright up\" continues")
}

// wantWhole fails the test unless the file has that many complete copies of a line.
func wantWhole(t *testing.T, path string, line []byte, want int) {
	t.Helper()
	content, err := os.ReadFile(path)
	whole := 0
	for got := range bytes.Lines(content) {
		if bytes.Equal(got, line) {
			whole++
		}
	}
	if err != nil || whole != want {
		t.Errorf("%d lines are whole (%v), want %d", whole, err, want)
	}
}
