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

// Child is a program that runs beside the control plane and needs it.
type Child struct {
	// Name of the child, unique in its control plane. It is also the name of its log file.
	Name string
	// Path of the program. Required.
	Path string
	// Args are its arguments, without its name.
	Args []string
	// Grace is how long it may take to end after SIGTERM; then it is killed.
	Grace time.Duration
}

// StartChild starts a program beside the control plane, which must be ready, and returns
// when it runs. Like a component it is restarted whenever it ends. Stop ends children before
// components, in the reverse order of their starts. StartChild first ends a child of that
// name that an earlier process left behind. The kernel kills children with their parent.
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
	if _, err := supervisor.EndLeftOver(ctx, cp.dir.record(c.Name), c.Grace); err != nil {
		return fmt.Errorf("ending the %s that an earlier process left behind: %w", c.Name, err)
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

// StopChildren ends the children, all at once, and returns when they have ended. The
// components go on.
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

// LeftOvers returns the names of the components and children that run in the folder of a
// control plane, also when the process that started them was killed.
func LeftOvers(dir string) ([]string, error) {
	files, err := filepath.Glob(layout(dir).record("*"))
	if err != nil {
		return nil, fmt.Errorf("looking for what runs in %s: %w", dir, err)
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

// EndLeftOvers ends the components that a killed process left behind in the folder of its
// control plane, in the order of Stop. Errors: *InUseError if the folder is in use.
func EndLeftOvers(ctx context.Context, dir string) error {
	lock, err := lockDir(layout(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close() // releases it
	return endLeftOvers(ctx, layout(dir), logr.Discard())
}

// endLeftOvers needs the lock on the folder: then the parent of what runs there is dead.
func endLeftOvers(ctx context.Context, dir layout, log logr.Logger) error {
	for _, c := range slices.Backward(components()) {
		found, err := supervisor.EndLeftOver(ctx, dir.record(c.name), c.grace)
		if err != nil {
			return fmt.Errorf("ending the %s that an earlier process left behind: %w", c.name, err)
		}
		if found {
			log.Info("ended a child that an earlier process left behind", "component", c.name)
		}
	}
	return nil
}
