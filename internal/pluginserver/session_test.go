package pluginserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

// TestSession_UnreadCancels checks that a driver that returns results but never reads cancellations is
// disconnected, and that no caller waits for it.
func TestSession_UnreadCancels(t *testing.T) {
	s := newSession(&driverpb.Registration{Kind: "deaf", MaxOperations: 2})
	for range 2 * cap(s.cancels) {
		op := &operation{message: &driverpb.Operation{OperationId: "one"}, response: make(chan *driverpb.OperationResult, 1)}
		s.slots <- struct{}{}
		s.begin(op)
		s.abandon("one")
		if !s.finish(&driverpb.OperationResult{OperationId: "one"}) {
			t.Fatal("the operation is unknown")
		}
	}
	select {
	case <-s.ended:
	default:
		t.Error("the session continues")
	}
}

// TestServer_DistinguishesCallers checks that callers are distinguished by the names in their certificates, which stay
// the same when a certificate is renewed.
func TestServer_DistinguishesCallers(t *testing.T) {
	s := New(Options{})
	with := func(serial int64, name string, dns ...string) context.Context {
		leaf := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: dns}
		return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}}})
	}
	places := s.placesOf(with(1, "aws"))
	if s.placesOf(with(2, "aws")) != places {
		t.Error("a renewed certificate has other places")
	}
	for name, other := range map[string]context.Context{
		"another name": with(1, "gcp"), "another DNS name": with(1, "aws", "gcp"), "no certificate": t.Context(),
	} {
		if s.placesOf(other) == places {
			t.Errorf("%s has the same places", name)
		}
	}
}
