// Package output collects the output of processes.
//
// It is separate from package program, which links all of millwright. Without it, a test binary that runs as
// another process starts faster.
package output

import (
	"bytes"
	"strings"
	"sync"
)

// Buffer collects the output of a process. The zero value is empty, and ready for use.
type Buffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

// String returns the output so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// Tail returns the last lines of the output.
func (b *Buffer) Tail(lines int) string {
	all := strings.Split(b.String(), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
