package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/millwright-dev/millwright/driver/conformance"
)

// results are the results of the runs with one file, for one driver and class.
type results struct {
	Driver  string               `json:"driver"`
	Class   string               `json:"class"`
	Results []conformance.Result `json:"results"`

	path string
}

// openResults reads the results of earlier runs. Without a path, there are none, and none are written.
func openResults(path, driver, class string) (*results, error) {
	r := &results{Driver: driver, Class: class, path: path}
	if path == "" {
		return r, nil
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, r.write()
	}
	if err != nil {
		return nil, fmt.Errorf("--resume: %w", err)
	}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("--resume: %s does not contain the results of a run: %w; choose another file", path, err)
	}
	if r.Driver != driver || r.Class != class {
		return nil, fmt.Errorf("--resume: %s has the results of driver %q with class %q; choose another file", path, r.Driver, r.Class)
	}
	return r, nil
}

// add adds a result, which replaces an earlier result of the rule, and writes the file.
func (r *results) add(result conformance.Result) error {
	if r.path == "" {
		return nil
	}
	r.Results = append(slices.DeleteFunc(slices.Clone(r.Results), func(other conformance.Result) bool { return other.Rule == result.Rule }), result)
	return r.write()
}

// write replaces the file, so that it is complete even if the process is killed.
func (r *results) write() error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write the results: %w", err)
	}
	next := r.path + ".tmp"
	if err := os.WriteFile(next, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("--resume: %w", err)
	}
	if err := os.Rename(next, r.path); err != nil {
		return fmt.Errorf("--resume: %w", err)
	}
	return nil
}
