package crash

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/test/support/output"
)

// process is a manager that runs, with its own way to the API server and the provider: what
// it sent before its death is not taken for a word of the next one.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	output *output.Buffer
	// control serves the provider, too. It is also the target if that is nil.
	control, target *httptest.Server
	// port of its metrics on 127.0.0.1. Zero: it serves none.
	port int
	done chan struct{}
	err  error
}

// servers are what a manager talks to. The target is nil if there is none, or if it is the
// control cluster.
type servers struct {
	control, target *apiserver
	provider        *provider
}

// newProcess starts a manager. It does nothing before it has its orders.
func newProcess(s servers) (*process, error) {
	p := &process{output: &output.Buffer{}, done: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), asManager+"=1")
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.control = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, providerPath) {
			s.provider.serve(p, w, r)
			return
		}
		s.control.serve(p, w, r)
	}))
	if s.target != nil {
		p.target = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.target.serve(p, w, r)
		}))
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// order has the manager begin.
func (p *process) order(o orders) error {
	o.URL, o.TargetURL = p.control.URL, p.control.URL
	p.port = o.Port
	switch {
	case o.NoTarget:
		o.TargetURL = ""
	case p.target != nil:
		o.TargetURL = p.target.URL
	}
	return json.NewEncoder(p.stdin).Encode(o)
}

// kill ends the process at once, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.done
}

// ending is how long a manager may take to end in order.
const ending = 30 * time.Second

// stop ends the process in order.
func (p *process) stop() error {
	_ = p.stdin.Close() // it may be gone already, which is seen below
	select {
	case <-p.done:
	case <-time.After(ending):
		return fmt.Errorf("manager %d does not end", p.pid())
	}
	if p.err != nil {
		return fmt.Errorf("manager %d did not end in order: %w", p.pid(), p.err)
	}
	return nil
}

// hangUp ends its connections.
func (p *process) hangUp() {
	for _, server := range p.servers() {
		server.CloseClientConnections()
	}
}

// release frees what is left of it.
func (p *process) release() {
	p.kill()
	p.hangUp()
	for _, server := range p.servers() {
		server.Close()
	}
}

// servers are those that it talks to.
func (p *process) servers() []*httptest.Server {
	if p.target == nil {
		return []*httptest.Server{p.control}
	}
	return []*httptest.Server{p.control, p.target}
}
