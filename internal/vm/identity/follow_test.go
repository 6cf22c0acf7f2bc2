package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !condition() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %v", what, ctx.Err())
		}
	}
}

// follow makes a process follow the authorities of its controller until stop is called or the test is done.
func follow(t *testing.T, c *Credentials, address string) (stop func()) {
	t.Helper()
	conn := value[*grpc.ClientConn](t)(c.Dial(address, Controller()))
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { c.FollowAuthorities(ctx, conn) })
	stop = sync.OnceFunc(func() {
		cancel()
		following.Wait()
		must(t, conn.Close())
	})
	t.Cleanup(stop)
	return stop
}

// signedBy reports whether an authority signed the certificate of a process.
func signedBy(t *testing.T, c *Credentials, authority *Authority) bool {
	t.Helper()
	cert, err := c.certificate(t.Context())
	must(t, err)
	return cert.Leaf.CheckSignatureFrom(authority.Certificate()) == nil
}

// The processes use their credentials as clients and as servers at each step of a rotation.
func TestAuthority_ProcessesStayReachableDuringRotation(t *testing.T) {
	s := newSite(t)
	sibling := Peer{Namespace: pod.Namespace, VM: pod.VM, Pod: "vm-1-def"}
	s.tokens["token-2"] = sibling
	source, target := s.hypervisor(t, writeToken(t, "token-1")), s.hypervisor(t, writeToken(t, "token-2"))
	health := func(server *grpc.Server) { healthpb.RegisterHealthServer(server, &whoami{}) }
	atSource, atTarget := serve(t, source.ServerOptions(), health), serve(t, target.ServerOptions(), health)
	everyoneConnects := func() {
		t.Helper()
		must(t, check(t, source, s.address, Controller()))
		must(t, check(t, source, atTarget, sibling))
		must(t, check(t, target, atSource, pod))
		must(t, check(t, ForController(s.authority, s.clock.Now), atSource, pod))
	}
	everyoneConnects()

	next := value[*Authority](t)(NewAuthority(s.clock.Now()))
	certificate, key := s.authority.PEM()
	previous := value[*Authority](t)(ParseAuthority(certificate, key))
	s.authority.Replace(previous.Trusting(next.Certificate()))
	everyoneConnects()
	if s.authority.TrustedBy(pod, next.Certificate()) {
		t.Error("a hypervisor that has not responded trusts the next authority")
	}
	stop := follow(t, source, s.address)
	follow(t, target, s.address)
	eventually(t, "both trust the next authority", func() bool {
		return s.authority.TrustedBy(pod, next.Certificate()) && s.authority.TrustedBy(sibling, next.Certificate())
	})
	everyoneConnects()
	if !signedBy(t, target, previous) {
		t.Error("the next authority issues certificates too early")
	}

	stale := holding(t, previous, pod, s.clock)
	stale.trust = source.trust
	must(t, check(t, stale, atTarget, sibling)) // requests a certificate
	s.authority.Replace(next.Trusting(previous.Certificate()))
	eventually(t, "the target renews its certificate", func() bool { return signedBy(t, target, next) })
	everyoneConnects()
	must(t, check(t, stale, atTarget, sibling)) // a live migration between an old and a new certificate
	if !bytes.Equal(s.authority.Bundle(), append(EncodeCertificate(next.Certificate()), EncodeCertificate(previous.Certificate())...)) {
		t.Error("the bundle is not the new authority followed by the previous one")
	}

	s.clock.advance(Lifetime + time.Hour)
	s.authority.Replace(next)
	eventually(t, "both trust only the new authority", func() bool {
		for _, c := range []*Credentials{source, target} {
			if len(c.trust.anchors.Load().authorities) != 1 {
				return false
			}
		}
		return true
	})
	everyoneConnects()
	wantCode(t, check(t, holding(t, previous, Controller(), s.clock), atSource, pod), codes.Unavailable)
	s.authority.Forget(func(peer Peer) bool { return peer == pod })
	if !s.authority.TrustedBy(pod, next.Certificate()) || s.authority.TrustedBy(sibling, next.Certificate()) {
		t.Error("Forget did not forget exactly the other hypervisor")
	}
	stop()
	eventually(t, "a disconnected hypervisor is forgotten", func() bool { return !s.authority.TrustedBy(pod, next.Certificate()) })
}

// The previous authority can be removed although the certificate that the controller got from it is still valid.
func TestAuthority_ControllerUsesNewAuthorityImmediately(t *testing.T) {
	s := newSite(t)
	controller, server := ForController(s.authority, s.clock.Now), ForServer(s.authority, "example.com", s.clock.Now)
	hypervisor := s.hypervisor(t, writeToken(t, "token-1"))
	address := serve(t, hypervisor.ServerOptions(), func(server *grpc.Server) { healthpb.RegisterHealthServer(server, &whoami{}) })
	must(t, check(t, hypervisor, s.address, Controller()))
	must(t, check(t, controller, address, pod))
	if !signedBy(t, server, s.authority) {
		t.Error("the authority did not sign the server's certificate")
	}

	next := value[*Authority](t)(NewAuthority(s.clock.Now()))
	s.authority.Replace(next)
	hypervisor = s.hypervisor(t, writeToken(t, "token-1")) // trusts only the new authority
	address = serve(t, hypervisor.ServerOptions(), func(server *grpc.Server) { healthpb.RegisterHealthServer(server, &whoami{}) })
	must(t, check(t, hypervisor, s.address, Controller()))
	must(t, check(t, controller, address, pod))
	if !signedBy(t, server, next) {
		t.Error("the new authority did not sign the server's certificate")
	}

	first := value[*tls.Certificate](t)(controller.certificate(t.Context()))
	s.authority.Replace(next.Trusting(value[*Authority](t)(NewAuthority(s.clock.Now())).Certificate()))
	if again := value[*tls.Certificate](t)(controller.certificate(t.Context())); again != first {
		t.Error("the certificate is renewed although the same authority issues certificates")
	}
}

func TestIssuer_AwaitAuthoritiesRejectsInvalidRequests(t *testing.T) {
	s := newSite(t)
	hypervisor := s.hypervisor(t, writeToken(t, "token-1"))
	conn := value[*grpc.ClientConn](t)(hypervisor.Dial(s.address, Controller()))
	defer func() { must(t, conn.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	long := make([][]byte, maxAuthorities+1)
	for i := range long {
		long[i] = make([]byte, 32)
	}
	for name, digests := range map[string][][]byte{"not a digest": {make([]byte, 31)}, "too many": long} {
		_, err := identitypb.NewCertificateAuthorityClient(conn).AwaitAuthorities(ctx, &identitypb.AwaitAuthoritiesRequest{Digests: digests})
		t.Log(name)
		wantCode(t, err, codes.InvalidArgument)
	}
	_, err := identitypb.NewCertificateAuthorityClient(anonymous(t, s, s.address, Controller())).AwaitAuthorities(ctx, &identitypb.AwaitAuthoritiesRequest{})
	wantCode(t, err, codes.Unauthenticated)
}

func TestCredentials_RejectUnusableAuthorities(t *testing.T) {
	s := newSite(t)
	hypervisor := s.hypervisor(t, writeToken(t, "token-1"))
	leaf := holding(t, s.authority, pod, s.clock)
	cert, err := leaf.certificate(t.Context())
	must(t, err)
	many := make([][]byte, maxAuthorities+1)
	for i := range many {
		many[i] = s.authority.Certificate().Raw
	}
	for name, raw := range map[string][][]byte{"none": nil, "too many": many, "no certificate": {{1}}, "not an authority": {cert.Leaf.Raw}} {
		if err := hypervisor.trustOnly(&identitypb.AwaitAuthoritiesResponse{Authorities: raw}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	must(t, check(t, hypervisor, s.address, Controller()))
}
