package expectations

import (
	"errors"
	"testing"
	"time"
)

func TestRetry(t *testing.T) {
	now, failure := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), errors.New("a webhook")
	var r Retry
	if r.Waits(1, now) != nil || r.Failing() {
		t.Error("the first attempt has to wait")
	}
	attempts := 0
	for end := now.Add(time.Hour); now.Before(end); now = now.Add(time.Second) {
		if err := r.Waits(1, now); err == nil {
			attempts++
			r.Failed(failure, 1, now)
		} else if !errors.Is(err, failure) {
			t.Fatalf("waits for %v", err)
		}
	}
	if attempts < 15 || attempts > 25 {
		t.Errorf("%d attempts in an hour", attempts)
	}
	if r.Waits(2, now) != nil {
		t.Error("a new generation has to wait")
	}
	r.Failed(failure, 2, now)
	if r.Waits(2, now.Add(firstRetry-1)) == nil || r.Waits(2, now.Add(firstRetry)) != nil {
		t.Error("a new generation does not begin with the shortest wait")
	}
	if r.Succeeded(); r.Failing() || r.Waits(2, now) != nil {
		t.Error("a success is followed by a wait")
	}
}
