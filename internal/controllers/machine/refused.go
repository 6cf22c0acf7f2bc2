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

// errRefused means that the API server refuses a write. It does not end the pass.
var errRefused = errors.New("the API server refuses it")

// refusalBackoff is for writes that an admission policy may refuse, since the policy may be corrected.
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

// unlessRefused writes to the node, unless the same write was refused recently. It returns
// errRefused in both cases, and warns once.
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
	now := refusal{desired: desired, backoff: refusalBackoff}
	if same {
		now.backoff = before.backoff
	}
	left := now.backoff.Step()
	now.retry = s.now.Add(left)
	if s.memory.refused == nil {
		s.memory.refused = map[string]refusal{}
	}
	s.memory.refused[reason] = now
	s.requeueWithin(left)
	return errRefused
}
