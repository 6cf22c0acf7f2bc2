package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/millwright-dev/millwright/internal/local/process"
	"github.com/millwright-dev/millwright/internal/local/supervisor"
)

// Child is a program that runs next to the control plane and needs it.
type Child struct {
	// Name of the child, unique in its control plane. It is also the name of its log file.
	Name string
	// Path of the program. It is required.
	Path string
	// Args are its arguments, without its name.
	Args []string
	// Grace is how long it may take to exit after SIGTERM before it is killed.
	Grace time.Duration
}

// StartChild starts a program next to the control plane, which must be ready, and returns when it runs. Like a
// component, it is restarted whenever it exits. Stop terminates children before components, in the reverse
// order of their starts. StartChild first terminates a child of that name that an earlier process left running.
// The kernel kills children together with their parent.
func (cp *ControlPlane) StartChild(ctx context.Context, c Child) error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.stopped {
		return fmt.Errorf("control plane %s is stopped", cp.config.Name)
	}
	named := func(other *supervisor.Child) bool { return other.Name == c.Name }
	if slices.ContainsFunc(slices.Concat(cp.components, cp.children), named) {
		return fmt.Errorf("control plane %s already has a child %s", cp.config.Name, c.Name)
	}
	if _, err := supervisor.EndOrphan(ctx, cp.dir.record(c.Name), c.Grace); err != nil {
		return fmt.Errorf("terminating the %s that an earlier process left running: %w", c.Name, err)
	}
	child, err := supervisor.New(supervisor.Program{
		Name: c.Name, Path: c.Path, Args: c.Args, Dir: cp.dir.path(),
		LogFile: cp.dir.log(c.Name), Record: cp.dir.record(c.Name),
		DeathSignal: syscall.SIGKILL, Grace: c.Grace, Log: cp.log,
	})
	if err != nil {
		return err
	}
	child.Start()
	cp.children = append(cp.children, child)
	return child.AwaitReady(ctx, true)
}

// StopChildren terminates the children concurrently, and returns when they have exited. The components
// continue.
func (cp *ControlPlane) StopChildren(ctx context.Context) error {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	errs := make([]error, len(cp.children))
	var ending sync.WaitGroup
	for i, c := range cp.children {
		ending.Go(func() { errs[i] = c.Stop(ctx) })
	}
	ending.Wait()
	cp.children = nil
	return errors.Join(errs...)
}

// Orphans returns the names of the components and children that run in the directory of a control plane, even
// if the process that started them was killed.
func Orphans(dir string) ([]string, error) {
	files, err := filepath.Glob(layout(dir).record("*"))
	if err != nil {
		return nil, fmt.Errorf("listing the processes of %s: %w", dir, err)
	}
	var names []string
	for _, file := range files {
		running, err := process.Running(file)
		if err != nil {
			return nil, err
		}
		if running {
			names = append(names, strings.TrimSuffix(filepath.Base(file), ".json"))
		}
	}
	return names, nil
}

// EndOrphans terminates the components that a killed process left running in the directory of its control
// plane, in the order of Stop. It returns an *InUseError if the directory is in use.
func EndOrphans(ctx context.Context, dir string) error {
	lock, err := lockDir(layout(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close() // releases it
	return endOrphans(ctx, layout(dir), logr.Discard())
}

// endOrphans needs the lock of the directory: then the parent of the processes is gone.
func endOrphans(ctx context.Context, dir layout, log logr.Logger) error {
	for _, c := range slices.Backward(components()) {
		found, err := supervisor.EndOrphan(ctx, dir.record(c.name), c.grace)
		if err != nil {
			return fmt.Errorf("terminating the %s that an earlier process left running: %w", c.name, err)
		}
		if found {
			log.Info("terminated a child that an earlier process left running", "component", c.name)
		}
	}
	return nil
}
