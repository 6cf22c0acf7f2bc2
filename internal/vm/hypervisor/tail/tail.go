// Package tail keeps the end of a stream of bytes.
package tail

import (
	"bytes"
	"sync"
)

// Writer keeps the last Limit bytes that are written to it. It is safe for concurrent use.
type Writer struct {
	// Limit is the number of bytes to keep. It must be at least 1.
	Limit int

	mu   sync.Mutex
	data []byte
}

// Write implements io.Writer. It removes old bytes only when there are twice as many as the limit, so that small
// writes are cheap.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.data = append(w.data, p[max(0, len(p)-w.Limit):]...)
	if surplus := len(w.data) - w.Limit; surplus > w.Limit {
		w.data = append(w.data[:0], w.data[surplus:]...)
	}
	return len(p), nil
}

// Bytes returns a copy of the bytes that are kept.
func (w *Writer) Bytes() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Clone(w.data[max(0, len(w.data)-w.Limit):])
}
