package vms

import (
	"context"
	"io"
	"os/exec"
	"strings"
	"syscall"

	"github.com/onsi/gomega"

	"github.com/millwright-dev/millwright/test/support/program"
)

// session is a running "millwright vm console".
type session struct {
	c      *cluster
	cmd    *exec.Cmd
	input  io.Writer
	output *program.Output
}

// console connects to a VM's console until the end of the test.
func (c *cluster) console(name string) *session {
	c.t.Helper()
	s := &session{c: c, output: &program.Output{}}
	s.cmd = program.Command(context.Background(), "vm", "console", name, "--dir", c.dir)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	input, err := s.cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	s.input = input
	if err := s.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have exited
		_ = s.cmd.Wait()         // by a signal
	})
	return s
}

func (s *session) write(text string) {
	s.c.t.Helper()
	if _, err := io.WriteString(s.input, text); err != nil {
		s.c.t.Fatal(err)
	}
}

// awaitOutput waits until the console has printed all of that, in this order.
func (s *session) awaitOutput(texts ...string) {
	s.c.t.Helper()
	s.c.eventually(joining, func(g gomega.Gomega) {
		rest := s.output.String()
		for _, text := range texts {
			_, after, found := strings.Cut(rest, text)
			g.Expect(found).To(gomega.BeTrue(), "%q in the console output:\n%s", text, s.output.Tail(30))
			rest = after
		}
	})
}

// deafen stops the process, so that it reads nothing more.
func (s *session) deafen() {
	s.c.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.c.t.Fatal(err)
	}
}
