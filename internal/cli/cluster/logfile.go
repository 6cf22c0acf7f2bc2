package cluster

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// logFile is a log that reports on the terminal when it cannot be written. Otherwise the cause, above all a
// full disk, would be lost with the log lines.
type logFile struct {
	*os.File
	stderr io.Writer

	mu sync.Mutex
	// failed reports whether the last line could not be written completely.
	failed bool
}

// Write implements io.Writer. It expects complete lines.
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := line
	if l.failed {
		text = append([]byte{'\n'}, line...) // the last line may have been truncated
	}
	if _, err := l.File.Write(text); err != nil {
		if !l.failed {
			fmt.Fprintf(l.stderr, "millwright: cannot write the log; lines are lost until it can be written again: %v\n", err)
		}
		l.failed = true
		return 0, err
	}
	if l.failed {
		fmt.Fprintf(l.stderr, "millwright: the log %s can be written again\n", l.Name())
	}
	l.failed = false
	return len(line), nil
}
