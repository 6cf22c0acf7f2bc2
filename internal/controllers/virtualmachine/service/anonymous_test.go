package service

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"k8s.io/utils/clock"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// fromAddress returns the nth address of clients.
func fromAddress(n int) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 4711))
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.from }

// TestLimits_AnonymousConnectionsInTotal checks that clients without a certificate have few connections, whatever
// their addresses.
func TestLimits_AnonymousConnectionsInTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admit := newLimits(clock.RealClock{}).admit(anonymous{insecure.NewCredentials()})
		admitted := 0
		for n := range 2 * maxAnonymous {
			ours, theirs := net.Pipe()
			t.Cleanup(func() { ours.Close() })
			if _, _, err := admit.ServerHandshake(addressed{theirs, fromAddress(n)}); err == nil {
				admitted++
			}
		}
		if admitted != maxAnonymous {
			t.Errorf("%d connections were admitted, want %d", admitted, maxAnonymous)
		}
		time.Sleep(anonymousTime) // closes them
	})
}

const issue = identitypb.CertificateAuthority_Issue_FullMethodName

// TestLimits_CertificatesInTotal checks that requests for certificates are limited, whatever the addresses of the clients.
func TestLimits_CertificatesInTotal(t *testing.T) {
	got := calls(2*issueTotal.burst, issue, func(n int) context.Context { return peer.NewContext(t.Context(), &peer.Peer{Addr: fromAddress(n)}) })
	if got != issueTotal.burst {
		t.Errorf("%d requests were allowed, want %d", got, issueTotal.burst)
	}
}

// TestLimits_CertificatesPerAddress checks that one address cannot use all requests for certificates.
func TestLimits_CertificatesPerAddress(t *testing.T) {
	got := calls(2*issueTotal.burst, issue, func(int) context.Context { return peer.NewContext(t.Context(), &peer.Peer{Addr: fromAddress(1)}) })
	if got != issueAddress.burst || issueAddress.burst >= issueTotal.burst {
		t.Errorf("%d requests of one address were allowed, want %d of %d", got, issueAddress.burst, issueTotal.burst)
	}
}
