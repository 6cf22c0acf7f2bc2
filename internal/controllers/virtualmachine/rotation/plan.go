package rotation

import (
	"fmt"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/identity"
)

const (
	// minDistribution is how long the next authority is at least distributed: kube-apiserver must learn to trust it,
	// and Pods that are being created with the previous settings must become visible.
	minDistribution = 5 * time.Minute
	// retirement is how long the previous authority is trusted after it has issued its last certificate. A process
	// that has lost its leadership may issue one slightly later.
	retirement = identity.Lifetime + time.Hour
	// maxNamed is the maximum number of hypervisors that a message names.
	maxNamed = 5
)

// action is the next change to the Secret.
type action int

const (
	wait action = iota
	// begin adds the next authority.
	begin
	// change makes the next authority issue certificates.
	change
	// retire removes the previous authority.
	retire
	// date records that the previous authority has issued its last certificate by now.
	date
)

// facts are what a decision depends on, in addition to the Secret.
type facts struct {
	now time.Time
	// distributed is how long this process has distributed the next authority.
	distributed time.Duration
	// pending are the hypervisors that do not trust the next authority yet, and total is the number of hypervisors.
	pending []string
	total   int
}

// plan returns what to do, and a message about the state of the rotation for users. The message is empty if no
// rotation is in progress.
func plan(c content, f facts) (action, string) {
	switch {
	case c.previous != nil && (c.switchedAt.IsZero() || c.switchedAt.After(f.now)):
		return date, retiring(f.now)
	case c.previous != nil:
		if f.now.Before(c.switchedAt.Add(retirement)) {
			return wait, retiring(c.switchedAt)
		}
		return retire, ""
	case c.next != nil:
		return planChange(c, f)
	case c.requested || f.now.After(renewal(c.current)):
		return begin, fmt.Sprintf("Distributing: %d hypervisors must trust the next authority", f.total)
	}
	return wait, ""
}

func planChange(c content, f facts) (action, string) {
	next := c.next.Certificate()
	switch {
	case f.now.Before(next.NotBefore) || !f.now.Before(next.NotAfter):
		return wait, fmt.Sprintf("Distributing: %s is not valid now, but from %s to %s; replace it, or remove it to cancel the rotation",
			keyNextCert, next.NotBefore.UTC().Format(time.RFC3339), next.NotAfter.UTC().Format(time.RFC3339))
	case len(f.pending) > 0:
		return wait, fmt.Sprintf("Distributing: %d of %d hypervisors do not trust the next authority yet: %s", len(f.pending), f.total, names(f.pending))
	case f.distributed < minDistribution:
		return wait, fmt.Sprintf("Distributing: all %d hypervisors trust the next authority; it issues certificates when %v have passed", f.total, minDistribution)
	}
	return change, retiring(f.now)
}

// retiring returns the message of the second phase.
func retiring(switchedAt time.Time) string {
	return fmt.Sprintf("Retiring: the previous authority is trusted until %s, when its certificates have expired", switchedAt.Add(retirement).UTC().Format(time.RFC3339))
}

// renewal returns when a rotation begins without a request: after two thirds of the authority's validity.
func renewal(authority *identity.Authority) time.Time {
	cert := authority.Certificate()
	return cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore) / 3)
}

// names joins names, and limits how many are in the result.
func names(all []string) string {
	if len(all) <= maxNamed {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNamed], ", "), len(all)-maxNamed)
}
