package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

func TestCredentials_IdentifyHypervisorByPod(t *testing.T) {
	s := newSite(t)
	must(t, check(t, s.hypervisor(t, writeToken(t, "token-1")), s.address, Controller()))
	if s.whoami.last != pod {
		t.Errorf("the handler got %v, want %v", s.whoami.last, pod)
	}
	wrong := s.hypervisor(t, writeToken(t, "a wrong one"))
	_, err := wrong.Peer(t.Context())
	wantCode(t, err, codes.Unauthenticated)
	err = check(t, wrong, s.address, Controller())
	wantCode(t, err, codes.Unavailable)
	if strings.Contains(err.Error(), "a wrong one") {
		t.Errorf("%q contains the token", err)
	}
}

func TestCredentials_RejectWrongPeers(t *testing.T) {
	s := newSite(t)
	foreign := value[*Authority](t)(NewAuthority(s.clock.Now()))
	other := Peer{Namespace: pod.Namespace, VM: pod.VM, Pod: "vm-1-def"}
	s.whoami.only = &pod
	hypervisor := serve(t, holding(t, s.authority, pod, s.clock).ServerOptions(), func(server *grpc.Server) {
		healthpb.RegisterHealthServer(server, &whoami{})
	})
	impostor := holding(t, foreign, pod, s.clock)
	impostor.trust = ForController(s.authority, s.clock.Now).trust
	tests := map[string]struct {
		reason   string
		with     *Credentials
		address  string
		expected Peer
		want     codes.Code
	}{
		"allowed":                     {"the peer may call", holding(t, s.authority, pod, s.clock), s.address, Controller(), codes.OK},
		"another Pod":                 {"RequireVM", holding(t, s.authority, other, s.clock), s.address, Controller(), codes.PermissionDenied},
		"another authority":           {"the server rejects the client", impostor, s.address, Controller(), codes.Unavailable},
		"server of another authority": {"the client rejects the server", holding(t, foreign, pod, s.clock), s.address, Controller(), codes.Unavailable},
		"another server":              {"a hypervisor is not the controller", holding(t, s.authority, pod, s.clock), hypervisor, Controller(), codes.Unavailable},
		"another hypervisor":          {"the hypervisors are different", holding(t, s.authority, Controller(), s.clock), hypervisor, other, codes.Unavailable},
		"right hypervisor":            {"the peer may call", holding(t, s.authority, Controller(), s.clock), hypervisor, pod, codes.OK},
		"impostor":                    {"a hypervisor rejects the client, too", impostor, hypervisor, pod, codes.Unavailable},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			wantCode(t, check(t, test.with, test.address, test.expected), test.want)
		})
	}
}

// wide responds with many fields, which take more memory than their bytes.
type wide struct {
	healthpb.UnimplementedHealthServer
	fields int
}

func (w wide) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	response := &healthpb.HealthCheckResponse{}
	response.ProtoReflect().SetUnknown(bytes.Repeat([]byte{2 << 3, 1}, w.fields))
	return response, nil
}

func TestDial_LimitsFieldsOfResponses(t *testing.T) {
	s := newSite(t)
	for fields, want := range map[int]codes.Code{maxFields: codes.OK, maxFields + 1: codes.Internal} {
		hypervisor := serve(t, holding(t, s.authority, pod, s.clock).ServerOptions(), func(server *grpc.Server) {
			healthpb.RegisterHealthServer(server, wide{fields: fields})
		})
		wantCode(t, check(t, ForController(s.authority, s.clock.Now), hypervisor, pod), want)
	}
}

// anonymous connects without a certificate.
func anonymous(t *testing.T, s *site, address string, expected Peer) *grpc.ClientConn {
	t.Helper()
	trust := ForController(s.authority, s.clock.Now).trust
	conn := value[*grpc.ClientConn](t)(grpc.NewClient(address,
		grpc.WithTransportCredentials(credentials.NewTLS(trust.client(expected)))))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestServerOptions_ClientWithoutCertificateMayOnlyIssue(t *testing.T) {
	s := newSite(t)
	conn := anonymous(t, s, s.address, Controller())
	wantCode(t, checkOver(t, conn), codes.Unauthenticated)
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	stream, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	must(t, err)
	_, err = stream.Recv()
	wantCode(t, err, codes.Unauthenticated)
	_, err = identitypb.NewCertificateAuthorityClient(conn).Issue(ctx, &identitypb.IssueRequest{})
	wantCode(t, err, codes.InvalidArgument)

	hypervisor := serve(t, holding(t, s.authority, pod, s.clock).ServerOptions(), func(server *grpc.Server) {
		healthpb.RegisterHealthServer(server, &whoami{})
	})
	wantCode(t, checkOver(t, anonymous(t, s, hypervisor, pod)), codes.Unavailable)
}

// A certificate of the authority is not sufficient to stay connected to a process of another VM.
func TestOnly(t *testing.T) {
	s := newSite(t)
	sibling := Peer{Namespace: pod.Namespace, VM: pod.VM, Pod: "vm-1-def"}
	only := Only(func(peer Peer) bool { return peer == sibling })
	options := holding(t, s.authority, pod, s.clock).ServerOptions(func(inner credentials.TransportCredentials) credentials.TransportCredentials {
		return only(inner).Clone()
	})
	hypervisor := serve(t, options, func(server *grpc.Server) { healthpb.RegisterHealthServer(server, &whoami{}) })
	for caller, want := range map[Peer]codes.Code{
		sibling: codes.OK, Controller(): codes.Unavailable, {Namespace: "pool", VM: "vm-2", Pod: "vm-2-abc"}: codes.Unavailable,
	} {
		t.Run(caller.String(), func(t *testing.T) {
			wantCode(t, check(t, holding(t, s.authority, caller, s.clock), hypervisor, pod), want)
		})
	}
	wantCode(t, checkOver(t, anonymous(t, s, hypervisor, pod)), codes.Unavailable)
}

func TestServerOptions_RejectOldTLS(t *testing.T) {
	s := newSite(t)
	for version, want := range map[uint16]bool{tls.VersionTLS12: false, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", s.address, &tls.Config{
			InsecureSkipVerify: true, MaxVersion: version, NextProtos: []string{"h2"},
		})
		if (err == nil) != want {
			t.Errorf("%s: got %v, want success: %v", tls.VersionName(version), err, want)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	old := ForController(s.authority, s.clock.Now).trust.client(Controller())
	if old.MinVersion != tls.VersionTLS13 {
		t.Error("a client accepts an old version of TLS")
	}
}

func TestCertificate_IsRenewed(t *testing.T) {
	s := newSite(t)
	tokenFile := writeToken(t, "token-1")
	c := s.hypervisor(t, tokenFile)
	must(t, check(t, c, s.address, Controller()))
	must(t, check(t, c, s.address, Controller()))
	if diff := cmp.Diff([]string{"token-1"}, s.tokensSeen()); diff != "" {
		t.Fatalf("tokens (-want +got):\n%s", diff)
	}

	// The token in the file has changed, and the old token is no longer valid.
	must(t, os.WriteFile(tokenFile, []byte("token-2"), 0o600))
	s.mu.Lock()
	s.tokens = map[string]Peer{"token-2": pod}
	s.mu.Unlock()
	s.clock.advance(Lifetime * 3 / 4)
	must(t, check(t, c, s.address, Controller()))

	// Long after it has expired, the controller has renewed its own certificate, too.
	s.clock.advance(3 * Lifetime)
	must(t, check(t, c, s.address, Controller()))
	if diff := cmp.Diff([]string{"token-1", "token-2", "token-2"}, s.tokensSeen()); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
}

func TestCertificate_OldOneIsUsedIfRenewalFails(t *testing.T) {
	s := newSite(t)
	tokenFile := writeToken(t, "token-1")
	c := s.hypervisor(t, tokenFile)
	must(t, check(t, c, s.address, Controller()))
	must(t, os.WriteFile(tokenFile, []byte("stale"), 0o600))
	s.clock.advance(Lifetime * 3 / 4)
	must(t, check(t, c, s.address, Controller()))
	must(t, check(t, c, s.address, Controller()))
	if got := s.tokensSeen(); len(got) != 2 {
		t.Errorf("asked with %q, want only one more attempt", got)
	}
	s.clock.advance(2 * renewPause)
	must(t, check(t, c, s.address, Controller()))
	if got := s.tokensSeen(); len(got) != 3 {
		t.Errorf("asked with %q, want another attempt after a pause", got)
	}
	s.clock.advance(Lifetime)
	wantCode(t, check(t, c, s.address, Controller()), codes.Unavailable)
}

func TestCertificate_RejectedOneIsReplaced(t *testing.T) {
	s := newSite(t)
	foreign := value[*Authority](t)(NewAuthority(s.clock.Now()))
	c := s.hypervisor(t, writeToken(t, "token-1"))
	wrong := value[*tls.Certificate](t)(holding(t, foreign, pod, s.clock).certificate(t.Context()))
	c.keep(wrong, nil)
	conn := value[*grpc.ClientConn](t)(c.Dial(s.address, Controller()))
	defer func() { must(t, conn.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	must(t, err)
	if got := s.tokensSeen(); len(got) != 1 {
		t.Errorf("asked with %q, want once", got)
	}
	if got := value[*tls.Certificate](t)(c.certificate(t.Context())); got == wrong {
		t.Error("the rejected certificate is still in use")
	}
}

func TestCertificate_ConcurrentCallersShareRequest(t *testing.T) {
	s := newSite(t)
	s.hold = make(chan struct{})
	c := s.hypervisor(t, writeToken(t, "token-1"))
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Peer(impatient); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want an immediate return", err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got, err := c.Peer(t.Context()); err != nil || got != pod {
				t.Errorf("got %v, %v, want %v", got, err, pod)
			}
		})
	}
	close(s.hold)
	all.Wait()
	if got := s.tokensSeen(); len(got) != 1 {
		t.Errorf("asked with %q, want once", got)
	}
}

func TestForHypervisor_SendsTokenOnlyToController(t *testing.T) {
	s := newSite(t)
	impostor := &Issuer{Authority: s.authority, Now: s.clock.Now, Resolve: func(_ context.Context, token string) (Peer, error) {
		t.Errorf("another server received the token %q", token)
		return pod, nil
	}}
	for name, as := range map[string]*Credentials{
		"a hypervisor":      holding(t, s.authority, pod, s.clock),
		"another authority": ForController(value[*Authority](t)(NewAuthority(s.clock.Now())), s.clock.Now),
	} {
		config := as.trust.server(tls.NoClientCert)
		config.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return as.certificate(hello.Context())
		}
		s.address = serve(t, []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, func(server *grpc.Server) {
			identitypb.RegisterCertificateAuthorityServer(server, impostor)
		})
		if _, err := s.hypervisor(t, writeToken(t, "token-1")).Peer(t.Context()); status.Code(errors.Unwrap(err)) != codes.Unavailable {
			t.Errorf("%s: got %v, want no connection", name, err)
		}
	}
}

func TestDial_FailsWithoutServer(t *testing.T) {
	s := newSite(t)
	if _, err := holding(t, s.authority, pod, s.clock).Dial(s.address, Peer{}); !errors.Is(err, ErrNotAPeer) {
		t.Errorf("got %v, want ErrNotAPeer", err)
	}
	if _, err := ForHypervisor(Options{}); !errors.Is(err, ErrBadAuthority) {
		t.Errorf("got %v, want ErrBadAuthority", err)
	}
}
