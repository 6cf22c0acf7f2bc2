package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Child is a program that runs beside the control plane and needs it.
type Child struct {
	// Name of the child, unique in its control plane. It names its log file.
	Name string
	// Path of the program. Required.
	Path string
	// Args are its arguments, without its name.
	Args []string
	// Grace is how long it may take to end after SIGTERM; then it is killed.
	Grace time.Duration
}

// StartChild runs a program beside the control plane, which must be ready: watched over
// and started again like a component, and stopped before all of them, in the reverse order
// of the starts. It returns when the program runs. A child that an earlier process left behind is ended first. If this
// process dies, so does the child, by SIGKILL.
func (cp *ControlPlane) StartChild(ctx context.Context, c Child) error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.stopped {
		return fmt.Errorf("control plane %s is stopped", cp.config.Name)
	}
	if slices.ContainsFunc(cp.components, func(other *component) bool { return other.name == c.Name }) {
		return fmt.Errorf("control plane %s has a %s already", cp.config.Name, c.Name)
	}
	run := program{
		path: c.Path, args: c.Args, dir: cp.dir.path(),
		logPath: cp.dir.log(c.Name), pidPath: cp.dir.pidFile(c.Name), deathSignal: syscall.SIGKILL,
	}
	if _, err := endLeftOver(ctx, run.pidPath, c.Grace); err != nil {
		return fmt.Errorf("ending the %s that an earlier process left behind: %w", c.Name, err)
	}
	if err := run.rotate(); err != nil {
		return fmt.Errorf("rotating the log of %s: %w", c.Name, err)
	}
	started := &component{
		name: c.Name, beside: true, launch: run.launch, lastLines: run.lastLines, grace: c.Grace, log: cp.log,
	}
	started.probe = started.runs
	started.start()
	cp.components = append(cp.components, started)
	return started.awaitReady(ctx, true)
}

// runs reports whether there is a process; nothing more can be asked of every program.
func (c *component) runs(context.Context) error {
	if r := c.current(); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.child != nil {
			return nil
		}
	}
	return errNotRunning
}

// StopChildren ends what StartChild started, all at once, and returns when it is gone.
// The components go on.
func (cp *ControlPlane) StopChildren(ctx context.Context) error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	var children, others []*component
	for _, c := range cp.components {
		if c.beside {
			children = append(children, c)
		} else {
			others = append(others, c)
		}
	}
	cp.components = others
	ended := make(chan struct{})
	for _, c := range children {
		go func() {
			c.stop(ctx)
			ended <- struct{}{}
		}()
	}
	var problems []error
	for _, c := range children {
		<-ended
		problems = append(problems, removeIfExists(cp.dir.pidFile(c.name)))
	}
	return errors.Join(problems...)
}
