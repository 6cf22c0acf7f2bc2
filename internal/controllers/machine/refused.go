package machine

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// errRefused means that the node cannot have what it should, which is no reason to leave the
// Machine alone.
var errRefused = errors.New("the API server refuses it")

// refusalBackoff is how long a write waits that was refused: whoever refuses it may be
// corrected, too.
var refusalBackoff = timeouts.Backoff{Base: 10 * time.Second, Max: 10 * time.Minute}

// refusable says what is refused, by the reason of the event.
var refusable = map[string]string{
	reasonTemplateRefused: "labels, annotations or taints of the node template",
	reasonCapacityRefused: "the virtual capacity of the class",
}

// refusal is a write that the API server refused.
type refusal struct {
	// wanted is what was refused. Something else may do better.
	wanted any
	// times is how often it was refused in a row, and retry when it is tried again.
	times int
	retry time.Time
}

// unlessRefused makes a write to the node, unless the same was refused a short while ago. It
// returns errRefused for both, and warns of it once.
func (s *scope) unlessRefused(reason string, wanted any, write func() error) error {
	before, known := s.memory.refused[reason]
	same := known && equality.Semantic.DeepEqual(before.wanted, wanted)
	if same && s.now.Before(before.retry) {
		s.wakeWithin(before.retry.Sub(s.now))
		return errRefused
	}
	err := write()
	switch {
	case err == nil:
		delete(s.memory.refused, reason)
		s.memory.told.Over(reason)
		return nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err), apierrors.IsRequestEntityTooLargeError(err):
		// something is wrong with the write that the API server will find again
	default:
		return err
	}
	s.warnOnce(reason, reason, fmt.Sprintf("The API server refuses %s: %v", refusable[reason], err), nil)
	now := refusal{wanted: wanted, times: 1}
	if same {
		now.times += before.times
	}
	wait := refusalBackoff.After(now.times)
	now.retry = s.now.Add(wait)
	if s.memory.refused == nil {
		s.memory.refused = map[string]refusal{}
	}
	s.memory.refused[reason] = now
	s.wakeWithin(wait)
	return errRefused
}

// warnOfInvalidTemplate warns once of what no node can have of the node template.
func (s *scope) warnOfInvalidTemplate() {
	invalid := noderef.Invalid(s.node, s.machine)
	if len(invalid) == 0 {
		s.memory.told.Over(reasonInvalidTemplate)
		return
	}
	s.warnOnce(reasonInvalidTemplate, reasonInvalidTemplate,
		fmt.Sprintf("Left out on node %s, since no node can have it: %s", s.node.Name, strings.Join(invalid, "; ")), nil)
}
