package cluster

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// logFile is a log that says on the terminal when it cannot be written: what the user would look for
// there, above all that the disk is full, is lost.
type logFile struct {
	*os.File
	stderr io.Writer

	mu sync.Mutex
	// failed reports whether the last line could not be written, or not as a whole.
	failed bool
}

// Write implements io.Writer. It gets whole lines.
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := line
	if l.failed {
		text = append([]byte{'\n'}, line...) // the last one may have been cut
	}
	if _, err := l.File.Write(text); err != nil {
		if !l.failed {
			fmt.Fprintf(l.stderr, "millwright: the log cannot be written, and its lines are lost until it can: %v\n", err)
		}
		l.failed = true
		return 0, err
	}
	if l.failed {
		fmt.Fprintf(l.stderr, "millwright: the log %s is written again\n", l.Name())
	}
	l.failed = false
	return len(line), nil
}
