package drain

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// UseInterval is the longest time between two calls of Options.Use while a drain needs events of the cache.
const UseInterval = time.Minute

const (
	// cacheRetry is the interval at which a drain that cannot read the cache asks for it again.
	cacheRetry = 5 * time.Second
	// cachePatience is how long a drain waits for the cache although a user forces it.
	cachePatience = 30 * time.Second
)

// awaitCache reports whether the cache can be read. Otherwise, it returns the Report of a drain that waits for it. Only a drain
// that a user forces gives up. Other reasons to force it are not enough, because the drain could not begin yet: when the
// cache is filled late, the time limit begins again.
func (d *Drainer) awaitCache(req *Request, l *drainState) (Report, bool) {
	if d.Use == nil {
		return Report{}, true
	}
	filled, problem := d.Use(req.Machine, func() { d.Wake(req.Machine) })
	now := d.Clock.Now()
	if filled {
		l.filled(now)
		if req.Force == ForceDeadline && now.Sub(l.resumed) < req.Timeout {
			req.Force = NotForced
		}
		if req.Since.Before(l.resumed) {
			req.Since = l.resumed
		}
		return Report{}, true
	}
	if l.unfilled.IsZero() {
		l.unfilled = now
	}
	made := Report{Force: req.Force}
	if problem != nil {
		made.Failed = []Failure{{Text: fmt.Sprintf("listing the pods and volumes of the target cluster: %v", problem)}}
	}
	byUser := req.Force == ForceRequested || req.Force == ForceDeadline && req.Timeout <= 0
	if byUser && now.Sub(l.unfilled) >= cachePatience {
		made.Done = true
		return made, false
	}
	made.Wait = cacheRetry
	made.Waiting = []Waiting{{For: ForLists, Next: now.Add(cacheRetry)}}
	return made, false
}

// filled records that the cache can be read.
func (l *drainState) filled(now time.Time) {
	if !l.unfilled.IsZero() && now.Sub(l.unfilled) >= cachePatience {
		l.resumed = now
	}
	l.unfilled = time.Time{}
}

// keepCache ensures that the cache is used again before it may be dropped, because events end the waits of a drain.
func (d *Drainer) keepCache(made *Report) {
	if d.Use != nil && !made.Done && (made.Wait == 0 || made.Wait > UseInterval) {
		made.Wait = UseInterval
	}
}

// isFilled reports whether the cache can be read.
func (d *Drainer) isFilled(node string) bool {
	if d.Use == nil {
		return true
	}
	filled, _ := d.Use(types.NamespacedName{Name: node}, nil)
	return filled
}
