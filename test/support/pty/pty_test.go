package pty

import (
	"os/exec"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	var text strings.Builder
	write := func(piece string) { text.WriteString(piece) }
	if err := Run(exec.Command("/bin/sh", "-c", "test -t 1 && stty size <&1"), 20, 2, write); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(text.String()); got != "2 20" {
		t.Errorf("shows %q", got)
	}
	if err := Run(exec.Command("/bin/false"), 20, 2, write); err == nil {
		t.Error("a command that fails is not an error")
	}
}
