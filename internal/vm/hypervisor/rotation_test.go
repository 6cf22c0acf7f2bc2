package hypervisor_test

import (
	"context"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMigration_BetweenAuthorities rotates the certificate authority while a guest runs. It moves the guest from a
// hypervisor with a certificate of the previous authority to one with a certificate of the new one, and on to one that
// trusts only the new authority, before any certificate of the previous one has expired.
func TestMigration_BetweenAuthorities(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	source := h.source()
	here := source.counts()
	here.keepsRunning()

	certificate, key := h.issuer.PEM()
	previous, err := identity.ParseAuthority(certificate, key)
	must(t, err)
	next, err := identity.NewAuthority(time.Now())
	must(t, err)
	h.issuer.Replace(previous.Trusting(next.Certificate()))
	h.awaitTrust("web-1", next)
	h.issuer.Replace(next.Trusting(previous.Certificate()))
	h.authority = h.issuer.Bundle()

	target, there := h.follows(source, here, "web-2")
	there.keepsRunning()
	target.wantAlive()
	h.awaitTrust("web-2", next)

	h.issuer.Replace(next)
	h.authority = h.issuer.Bundle()
	target, there = h.follows(target, there, "web-3")
	there.keepsRunning()
	target.wantAlive()
	h.awaitTrust("web-3", next)
}

// awaitTrust waits until the hypervisor in a Pod has confirmed that it trusts an authority.
func (h *testCluster) awaitTrust(pod string, authority *identity.Authority) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !h.issuer.TrustedBy(identity.Peer{Namespace: "default", VM: "web", Pod: pod}, authority.Certificate()) {
		select {
		case <-poll.C:
		case <-ctx.Done():
			h.t.Fatalf("%s does not trust the next authority", pod)
		}
	}
}
