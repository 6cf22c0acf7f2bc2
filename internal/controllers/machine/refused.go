package machine

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// errRefused means that the API server refuses a write. The pass continues after it.
var errRefused = errors.New("the API server refuses the write")

// refusalBackoff is the back-off of refused writes. They are retried, since the admission policy that refuses
// them may be corrected.
var refusalBackoff = timeouts.Doubling(10*time.Second, 10*time.Minute)

var refusable = map[string]string{
	reasonTemplateRefused: "labels, annotations or taints of the node template",
	reasonCapacityRefused: "the virtual capacity of the class",
}

// refusal is a write that the API server refused.
type refusal struct {
	desired any
	backoff wait.Backoff
	retry   time.Time
}

// unlessRefused calls write, unless the same write was refused recently. If the API server refuses or has refused
// the write, it returns errRefused, and adds a warning once.
func (s *scope) unlessRefused(reason string, desired any, write func() error) error {
	before, known := s.memory.refused[reason]
	same := known && equality.Semantic.DeepEqual(before.desired, desired)
	if same && s.now.Before(before.retry) {
		s.requeueWithin(before.retry.Sub(s.now))
		return errRefused
	}
	err := write()
	switch {
	case err == nil:
		delete(s.memory.refused, reason)
		s.memory.sent.Over(reason)
		return nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
	default:
		return err
	}
	s.events.warnOnce(reason, pendingEvent{reason: reason, message: fmt.Sprintf("The API server refuses %s: %v", refusable[reason], err)})
	next := refusal{desired: desired, backoff: refusalBackoff}
	if same {
		next.backoff = before.backoff
	}
	left := next.backoff.Step()
	next.retry = s.now.Add(left)
	if s.memory.refused == nil {
		s.memory.refused = map[string]refusal{}
	}
	s.memory.refused[reason] = next
	s.requeueWithin(left)
	return errRefused
}
