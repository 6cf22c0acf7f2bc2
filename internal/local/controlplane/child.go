package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/millwright-dev/millwright/internal/local/supervisor"
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

// StartChild runs a program beside the control plane, which must be ready. The program is
// started again whenever it ends, as components are, and stopped before all of them, in the
// reverse order of the starts. StartChild returns when it runs. One that an earlier process
// left behind is ended first. If this process dies, the kernel kills it.
func (cp *ControlPlane) StartChild(ctx context.Context, c Child) error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.stopped {
		return fmt.Errorf("control plane %s is stopped", cp.config.Name)
	}
	named := func(other *supervisor.Child) bool { return other.Name == c.Name }
	if slices.ContainsFunc(slices.Concat(cp.components, cp.children), named) {
		return fmt.Errorf("control plane %s has a %s already", cp.config.Name, c.Name)
	}
	if _, err := supervisor.EndLeftOver(ctx, cp.dir.pidFile(c.Name), c.Grace); err != nil {
		return fmt.Errorf("ending the %s that an earlier process left behind: %w", c.Name, err)
	}
	child, err := supervisor.New(supervisor.Program{
		Name: c.Name, Path: c.Path, Args: c.Args, Dir: cp.dir.path(),
		LogFile: cp.dir.log(c.Name), PIDFile: cp.dir.pidFile(c.Name),
		DeathSignal: syscall.SIGKILL, Grace: c.Grace, Log: cp.log,
	})
	if err != nil {
		return err
	}
	child.Start()
	cp.children = append(cp.children, child)
	return child.AwaitReady(ctx, true)
}

// StopChildren ends what StartChild started, all at once, and returns when it is gone.
// The components go on.
func (cp *ControlPlane) StopChildren(ctx context.Context) error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	problems := make([]error, len(cp.children))
	var ending sync.WaitGroup
	for i, c := range cp.children {
		ending.Go(func() { problems[i] = c.Stop(ctx) })
	}
	ending.Wait()
	cp.children = nil
	return errors.Join(problems...)
}
