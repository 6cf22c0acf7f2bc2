package machine

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// errRefused: the node cannot have what it should, which is no reason to leave the Machine
// alone.
var errRefused = errors.New("the API server refuses it")

// What was refused is tried again after a while, and each time after twice as long: whoever
// refuses it may be corrected, too.
const (
	firstRefusalRetry = 10 * time.Second
	lastRefusalRetry  = 10 * time.Minute
)

// refusable says what is refused when a reason is told.
var refusable = map[string]string{
	reasonTemplateRefused: "labels, annotations or taints of the node template",
	reasonCapacityRefused: "the virtual capacity of the class",
}

// refusals holds what nodes could not have, and what was last told of that. It may be empty at
// any time: then it is tried, and told, once more.
type refusals struct{ known, told sync.Map }

// refusalKey says of which Machine's node something was refused, and with which reason that
// is told.
type refusalKey struct {
	machine types.NamespacedName
	reason  string
}

type refusal struct {
	// wanted is what was refused. Something else may do better.
	wanted any
	// again is when it is tried again, wait how long that was put off.
	again time.Time
	wait  time.Duration
}

func (r *refusals) forget(machine types.NamespacedName) {
	for _, reason := range []string{reasonUnfit, reasonTemplateRefused, reasonCapacityRefused} {
		r.end(refusalKey{machine, reason})
	}
}

// end is for what is refused no longer.
func (r *refusals) end(key refusalKey) {
	r.known.Delete(key)
	r.told.Delete(key)
}

// tell tells of a refusal unless that is what was told last.
func (r *refusals) tell(s *scope, reason, sentence string) {
	key := refusalKey{s.key(), reason}
	if told, _ := r.told.Load(key); told != sentence {
		s.events = append(s.events, explanation{
			kind: corev1.EventTypeWarning, reason: reason, message: sentence,
			sent: func() { r.told.Store(key, sentence) },
		})
	}
}

// unlessRefused makes a write to the node, unless the same was refused a short while ago. It
// answers errRefused for both, and tells of it once.
func (c *Controller) unlessRefused(s *scope, reason string, wanted any, write func() error) error {
	key := refusalKey{s.key(), reason}
	before := refusal{}
	if found, ok := c.refusals.known.Load(key); ok {
		before = found.(refusal)
	}
	same := before.wait > 0 && equality.Semantic.DeepEqual(before.wanted, wanted)
	if same && s.now.Before(before.again) {
		s.wakeWithin(before.again.Sub(s.now))
		return errRefused
	}
	err := write()
	switch {
	case err == nil:
		c.refusals.end(key)
		return nil
	case !refused(err):
		return err
	}
	c.refusals.tell(s, reason, fmt.Sprintf("The API server refuses %s: %v", refusable[reason], err))
	now := refusal{wanted: wanted, wait: firstRefusalRetry}
	if same {
		now.wait = min(2*before.wait, lastRefusalRetry)
	}
	now.again = s.now.Add(now.wait)
	c.refusals.known.Store(key, now)
	s.wakeWithin(now.wait)
	return errRefused
}

// refused reports whether an API server found something wrong with a write that it will find
// again.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// sayUnfit tells once what of the node template no node can have.
func (c *Controller) sayUnfit(s *scope) {
	unfit := noderef.Unfit(s.node, s.machine)
	if len(unfit) == 0 {
		c.refusals.end(refusalKey{s.key(), reasonUnfit})
		return
	}
	c.refusals.tell(s, reasonUnfit, fmt.Sprintf("Left out on node %s, since no node can have it: %s", s.node.Name, strings.Join(unfit, "; ")))
}
