package messages

import (
	"strings"
	"time"
)

// Duration writes a duration as precisely as people want to know it, and without parts that
// are zero: 2.3s, 1m14s, 20m, 2h.
func Duration(d time.Duration) string {
	switch {
	case d.Abs() < time.Second:
		d = d.Round(time.Millisecond)
	case d.Abs() < 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Second)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
