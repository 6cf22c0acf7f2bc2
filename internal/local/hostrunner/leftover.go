package hostrunner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/millwright-dev/millwright/internal/local/process"
)

// StopLeftOvers ends the processes that a host runner left behind which was killed: in
// order at first, at once when the context ends. It returns how many there were. What is
// in the folder stays, for a later Run to report.
//
// Errors: ErrInUse if a host runner works in the folder, and what kept it from finding or
// ending a process.
func StopLeftOvers(ctx context.Context, dir string) (int, error) {
	lock, err := lockDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer lock.Close() // gives the lock back
	folders, err := filepath.Glob(filepath.Join(layout(dir).pods(), "*"))
	if err != nil {
		return 0, fmt.Errorf("looking for pods in %s: %w", dir, err)
	}
	var running []*process.Process
	var problems []error
	for _, folder := range folders {
		found, err := process.Open(podFolder(folder).process())
		switch {
		case errors.Is(err, process.ErrNeverStarted):
		case err != nil:
			problems = append(problems, fmt.Errorf("looking for the process of %s: %w", folder, err))
		case !over(found):
			running = append(running, found)
		}
	}
	var all sync.WaitGroup
	for _, p := range running {
		all.Go(func() { endWithin(ctx, p) })
	}
	all.Wait()
	return len(running), errors.Join(problems...)
}

func over(p *process.Process) bool {
	select {
	case <-p.Ended():
		return true
	default:
		return false
	}
}

// endWithin asks the process to end, and kills it when the context ends.
func endWithin(ctx context.Context, p *process.Process) {
	p.Terminate()
	select {
	case <-p.Ended():
		return
	case <-ctx.Done():
	}
	p.Kill()
	<-p.Ended()
}
