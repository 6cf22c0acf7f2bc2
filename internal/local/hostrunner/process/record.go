package process

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/millwright-dev/millwright/internal/local/folder"
)

// ErrNeverStarted means that no process was started in the folder.
var ErrNeverStarted = errors.New("no process was started")

// record is what is stored of a start.
type record struct {
	// PID is the number of the process, 0 until it exists. It is trusted only together
	// with the lock, since numbers are used again.
	PID int `json:"pid,omitempty"`
	// Began is when the process was about to be started.
	Began time.Time `json:"began"`
}

func recordPath(dir string) string { return filepath.Join(dir, "process.json") }
func lockPath(dir string) string   { return filepath.Join(dir, "process.lock") }

func readRecord(dir string) (record, error) {
	content, err := os.ReadFile(recordPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, ErrNeverStarted
	}
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		// A file that was lost in a power cut: its process is lost with it, and the
		// lock tells so. What matters is that there was one.
		return record{}, nil
	}
	return r, nil
}

// write replaces the record in one step.
func (r record) write(dir string) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return folder.WriteFile(recordPath(dir), content)
}
