package lease

import (
	"testing"
	"time"
)

func TestHolder(t *testing.T) {
	const minute = time.Minute
	granted := func(sent, now Instant) func(*Holder) {
		return func(h *Holder) { h.Granted(Lease{Sent: sent, Duration: minute}, now) }
	}
	for name, test := range map[string]struct {
		events []func(*Holder)
		at     Instant
		want   HolderState
	}{
		"without a lease":                      {nil, time.Hour, Waiting},
		"with a lease":                         {[]func(*Holder){granted(0, 1)}, 49 * time.Second, Holding},
		"before it expires":                    {[]func(*Holder){granted(0, 1)}, 50 * time.Second, Ended},
		"renewed":                              {[]func(*Holder){granted(0, 1), granted(20*time.Second, 21*time.Second)}, 69 * time.Second, Holding},
		"an old response after a new one":      {[]func(*Holder){granted(20*time.Second, 21*time.Second), granted(0, 22*time.Second)}, 69 * time.Second, Holding},
		"a response that took too long":        {[]func(*Holder){granted(0, 50*time.Second)}, 51 * time.Second, Waiting},
		"a renewal after the holder has ended": {[]func(*Holder){granted(0, 1), granted(49*time.Second, 50*time.Second)}, 51 * time.Second, Ended},
		"refused":                              {[]func(*Holder){granted(0, 1), (*Holder).Refused}, 2, Ended},
		"refused and then granted":             {[]func(*Holder){(*Holder).Refused, granted(0, 1)}, 2, Ended},
	} {
		t.Run(name, func(t *testing.T) {
			var holder Holder
			for _, event := range test.events {
				event(&holder)
			}
			if got := holder.State(test.at); got != test.want {
				t.Errorf("state = %v, want %v", got, test.want)
			}
		})
	}
}

// For any duration, there is time for two attempts to renew, and the times are in order.
func TestLease_Terms(t *testing.T) {
	for _, duration := range []time.Duration{MinDuration, 10 * time.Second, DefaultDuration, MaxDuration} {
		l := Lease{Sent: time.Hour, Duration: duration}
		if l.Renew()+2*Retry(duration) >= l.Stop() || l.Stop() >= l.Kill() || l.Kill() >= l.End() {
			t.Errorf("%v: renewed at %v, stopped at %v, killed at %v, expires at %v", duration, l.Renew(), l.Stop(), l.Kill(), l.End())
		}
		if fast := Wait(duration) - duration; fast < duration/marginShare || fast < minMargin {
			t.Errorf("%v: margin = %v", duration, fast)
		}
		if Silence(duration) <= duration/3+Retry(duration) {
			t.Errorf("%v: a holder is suspected after %v, although it may still renew", duration, Silence(duration))
		}
	}
}

func TestCheck(t *testing.T) {
	for duration, valid := range map[time.Duration]bool{
		MinDuration - 1: false, 0: false, -1: false, MinDuration: true, MaxDuration: true, MaxDuration + 1: false,
	} {
		if err := Check(duration); (err == nil) != valid {
			t.Errorf("%v: error = %v", duration, err)
		}
	}
}

// The holder is suspected after a period of silence, not before. The lease is handed on once it has been barred
// for as long as it may be valid.
func TestWatch(t *testing.T) {
	record := Record{State: Open, Duration: time.Minute}
	var watch Watch
	for _, test := range []struct {
		facts Facts
		want  Step
		after time.Duration
	}{
		{Facts{Record: record, Heard: 0, Now: 39 * time.Second}, Stay, time.Second},
		{Facts{Record: record, Heard: 0, Now: 40 * time.Second}, Suspect, 0},
		{Facts{Record: record, Heard: 0, Now: time.Second, Gone: true}, Revoke, 0},
		{Facts{Record: record.Next(Suspected), Now: 100 * time.Second}, Stay, 63 * time.Second},
		{Facts{Record: record.Next(Suspected), Now: 162 * time.Second, Gone: true}, Stay, time.Second},
		{Facts{Record: record.Next(Suspected), Now: 163 * time.Second}, HandOn, 0},
		{Facts{Record: record.Next(Open).Next(Suspected), Now: 164 * time.Second}, Stay, 63 * time.Second},
		{Facts{Record: record.Next(Released), Now: 200 * time.Second}, Stay, 63 * time.Second},
		{Facts{Record: record.Next(Released), Now: 200 * time.Second, Gone: true}, HandOn, 0},
	} {
		step, after := watch.Next(test.facts)
		if step != test.want || after != test.after {
			t.Errorf("%+v: %s after %v, want %s after %v", test.facts, step, after, test.want, test.after)
		}
	}
}
