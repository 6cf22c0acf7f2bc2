package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/go-logr/logr"

	"github.com/millwright-dev/millwright/internal/local/supervisor"
)

// LeftOvers returns the names of the components and children that run in the folder of a
// control plane, also when the process that started them was killed.
func LeftOvers(dir string) ([]string, error) {
	files, err := filepath.Glob(layout(dir).pidFile("*"))
	if err != nil {
		return nil, fmt.Errorf("looking for what runs in %s: %w", dir, err)
	}
	var names []string
	for _, file := range files {
		running, err := supervisor.IsRunning(file)
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
	cp := &ControlPlane{dir: layout(dir), log: logr.Discard()}
	return cp.endLeftOvers(ctx)
}
