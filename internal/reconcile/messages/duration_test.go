package messages

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                     "0s",
		300*time.Microsecond + 20*time.Second: "20s",
		340200 * time.Microsecond:             "340ms",
		2337045191:                            "2.3s",
		9970 * time.Millisecond:               "10s",
		74300 * time.Millisecond:              "1m14s",
		90 * time.Second:                      "1m30s",
		10 * time.Minute:                      "10m",
		20*time.Minute + 10*time.Second:       "20m10s",
		2 * time.Hour:                         "2h",
		2*time.Hour + 10*time.Minute:          "2h10m",
		-time.Minute:                          "-1m",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v is formatted as %q, want %q", d, got, want)
		}
	}
}
