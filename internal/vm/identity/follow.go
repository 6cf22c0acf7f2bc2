package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

const (
	// maxAuthorities is the maximum number of trusted authorities in a message.
	maxAuthorities = 16
	// followPause is the maximum time until a hypervisor asks again after a failure. It is random, so that the other
	// calls of many hypervisors succeed first when a controller has restarted.
	followPause = 30 * time.Second
	// unsupportedPause is that time if the controller does not implement AwaitAuthorities.
	unsupportedPause = 5 * time.Minute
)

// AwaitAuthorities implements CertificateAuthority.
func (i *Issuer) AwaitAuthorities(ctx context.Context, request *identitypb.AwaitAuthoritiesRequest) (*identitypb.AwaitAuthoritiesResponse, error) {
	peer, err := FromContext(ctx)
	if err != nil {
		return nil, err
	}
	trusted, err := parseDigests(request.GetDigests())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	authorities, err := i.Authority.await(ctx, peer, trusted)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	response := &identitypb.AwaitAuthoritiesResponse{}
	for _, authority := range authorities {
		response.Authorities = append(response.Authorities, authority.Raw)
	}
	return response, nil
}

func parseDigests(raw [][]byte) ([]digest, error) {
	if len(raw) > maxAuthorities {
		return nil, fmt.Errorf("%d digests, at most %d are supported", len(raw), maxAuthorities)
	}
	var digests []digest
	for _, bytes := range raw {
		if len(bytes) != len(digest{}) {
			return nil, errors.New("a digest is not a SHA-256 digest")
		}
		digests = append(digests, digest(bytes))
	}
	return digests, nil
}

// await records what a hypervisor trusts, and waits until that differs from what it must trust.
func (a *Authority) await(ctx context.Context, peer Peer, trusted []digest) ([]*x509.Certificate, error) {
	for {
		a.mu.Lock()
		if !peer.IsController() {
			a.followers[peer] = trusted
		}
		current, changed := a.anchors.Load(), a.changed
		a.mu.Unlock()
		if !slices.Equal(current.digests, trusted) {
			return current.authorities, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			a.disconnected(peer)
			return nil, ctx.Err()
		}
	}
}

// disconnected forgets a hypervisor that is disconnected, unless a rotation is in progress: it may be connected again
// when the rotation continues. Forget is called during rotations.
func (a *Authority) disconnected(peer Peer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.anchors.Load().authorities) == 1 {
		delete(a.followers, peer)
	}
}

// TrustedBy reports whether a hypervisor has reported to this process that it trusts a certificate.
func (a *Authority) TrustedBy(peer Peer, cert *x509.Certificate) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Contains(a.followers[peer], digestOf(cert))
}

// Forget forgets what hypervisors have reported, except those for which keep returns true.
func (a *Authority) Forget(keep func(Peer) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for peer := range a.followers {
		if !keep(peer) {
			delete(a.followers, peer)
		}
	}
}

// FollowAuthorities asks the controller at the other side of the connection which authorities to trust, and trusts
// them for all later connections, until the context is canceled. If the certificate of this process is of another
// authority than the one that issues certificates, a new one is requested for the next connection. If another system
// issues the certificate, FollowAuthorities returns immediately.
func (c *Credentials) FollowAuthorities(ctx context.Context, conn grpc.ClientConnInterface) {
	client := identitypb.NewCertificateAuthorityClient(conn)
	for c.follows && ctx.Err() == nil {
		request := &identitypb.AwaitAuthoritiesRequest{}
		for _, trusted := range c.trust.anchors.Load().digests {
			request.Digests = append(request.Digests, trusted[:])
		}
		response, err := client.AwaitAuthorities(ctx, request, grpc.WaitForReady(true))
		if err == nil {
			err = c.trustOnly(response)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		pause := followPause/6 + rand.N(followPause)
		if status.Code(err) == codes.Unimplemented {
			pause = unsupportedPause
		} else {
			c.log.Info("cannot ask the controller which authorities to trust; retrying", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// trustOnly trusts the authorities in a response instead of those that are trusted now.
func (c *Credentials) trustOnly(response *identitypb.AwaitAuthoritiesResponse) error {
	raw := response.GetAuthorities()
	if len(raw) == 0 || len(raw) > maxAuthorities {
		return fmt.Errorf("the controller returned %d authorities, expected 1 to %d", len(raw), maxAuthorities)
	}
	authorities, err := parseChain(raw)
	if err != nil {
		return err
	}
	for _, authority := range authorities {
		if err := checkAuthority(authority); err != nil {
			return err
		}
	}
	c.trust.anchors.Store(anchorsOf(authorities, uriOwn))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.current.Leaf.CheckSignatureFrom(authorities[0]) != nil {
		c.renewAt = time.Time{}
	}
	c.log.Info("the trusted authorities have changed", "authorities", len(authorities), "until", authorities[0].NotAfter)
	return nil
}
