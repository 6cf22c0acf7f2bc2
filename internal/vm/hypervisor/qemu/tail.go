package qemu

// tail keeps the last limit bytes of what is written to it. It is not safe for
// concurrent use.
type tail struct {
	limit int
	data  []byte
}

// write adds bytes. Older ones are moved out when twice the limit has gathered, so
// that small writes stay cheap.
func (t *tail) write(p []byte) {
	if len(p) >= t.limit {
		t.data = append(t.data[:0], p[len(p)-t.limit:]...)
		return
	}
	t.data = append(t.data, p...)
	if len(t.data) > 2*t.limit {
		kept := copy(t.data, t.bytes())
		t.data = t.data[:kept]
	}
}

// bytes are valid until the next write.
func (t *tail) bytes() []byte {
	return t.data[max(0, len(t.data)-t.limit):]
}
