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

// process is a running manager with its own connections to the API server and the provider, so that its last
// requests are not attributed to the next manager.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	output *output.Buffer
	// control serves the provider, too. It is also the target if target is nil.
	control, target *httptest.Server
	// port is the port of its metrics on 127.0.0.1. If zero, it serves none.
	port int
	done chan struct{}
	err  error
}

// servers are the servers that a manager connects to. The target is nil if there is none, or if it is the control
// cluster.
type servers struct {
	control, target *apiserver
	provider        *provider
}

// newProcess starts a manager process. It does nothing until it receives its orders.
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

// order starts the manager.
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

// kill kills the process, and waits until it has exited.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have exited already
	<-p.done
}

// ending is the timeout of a graceful shutdown.
const ending = 30 * time.Second

// stop shuts the process down gracefully.
func (p *process) stop() error {
	_ = p.stdin.Close() // it may have exited already, which is checked below
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

// hangUp closes its connections.
func (p *process) hangUp() {
	for _, server := range p.servers() {
		server.CloseClientConnections()
	}
}

// release frees its resources.
func (p *process) release() {
	p.kill()
	p.hangUp()
	for _, server := range p.servers() {
		server.Close()
	}
}

// servers returns the servers that it connects to.
func (p *process) servers() []*httptest.Server {
	if p.target == nil {
		return []*httptest.Server{p.control}
	}
	return []*httptest.Server{p.control, p.target}
}
