package service

import (
	"context"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
)

// Limits of connections, and of the calls on each connection.
const (
	// maxConnections and maxPerAddress limit open connections, including those in a handshake. All hypervisors on a
	// host may have the same address.
	maxConnections = 8192
	maxPerAddress  = 1024
	// maxAnonymous, maxAnonymousPerAddress and anonymousTime limit connections without a
	// certificate.
	maxAnonymous           = 256
	maxAnonymousPerAddress = 64
	anonymousTime          = 30 * time.Second
	// maxPerPeer limits the connections of one identity. A hypervisor has one connection, but the next process in its
	// Pod may connect before the server has noticed that the last one exited.
	maxPerPeer = 4
	// handshakeTime is how long a handshake may take.
	handshakeTime = 10 * time.Second
	// idleTime is how long a connection may be without a call. Hypervisors always have a call open.
	idleTime = 5 * time.Minute
	// maxStreams limits the concurrent calls on a connection. Hypervisors make up to four.
	maxStreams = 8
	// maxMessage and maxHeaders limit the size of requests, in bytes. The longest request contains a token and a
	// certificate request.
	maxMessage = 64 << 10
	maxHeaders = 16 << 10
	// maxFields limits the fields of a request.
	maxFields = 4096
)

// Limits of connections and calls per second, with the size of a burst. Each certificate that is issued takes a
// TokenReview and two more requests to the API server.
var (
	openAddress  = budget{50, 1000} // connections
	issueTotal   = budget{20, 200}
	issueAddress = budget{5, 100}
	callTotal    = budget{1000, 10_000}
	callPeer     = budget{10, 40}
)

// maxRemembered limits the number of addresses, and that of peers, whose rates are remembered.
const maxRemembered = 16_384

type budget struct {
	perSecond rate.Limit
	burst     int
}

func (b budget) limiter() *rate.Limiter { return rate.NewLimiter(b.perSecond, b.burst) }

// limits restricts how clients may use the VM controller's port. Create one for each server with newLimits.
//
// A client is identified by its address until the handshake is complete, and then by its certificate. A client
// without a certificate can only request one, and must do so immediately. All limits are far above what hypervisors
// need. A hypervisor retries a call that was refused.
type limits struct {
	clock clock.PassiveClock

	connections, anonymous *connlimit.Counter
	peers                  *connlimit.Counter
	issues, calls          *rate.Limiter

	mu        sync.Mutex
	opens     *lru.Cache // *rate.Limiter by origin
	ofAddress *lru.Cache // *rate.Limiter by origin
	ofPeer    *lru.Cache // *rate.Limiter by identity.Peer
}

// newLimits returns limits without any connections.
func newLimits(clock clock.PassiveClock) *limits {
	return &limits{
		clock:       clock,
		connections: connlimit.NewCounter(maxConnections, maxPerAddress),
		anonymous:   connlimit.NewCounter(maxAnonymous, maxAnonymousPerAddress),
		peers:       connlimit.NewCounter(maxConnections, maxPerPeer),
		issues:      issueTotal.limiter(), calls: callTotal.limiter(),
		opens: lru.New(maxRemembered), ofAddress: lru.New(maxRemembered), ofPeer: lru.New(maxRemembered),
	}
}

// serverOptions returns the options for a server. Use listen for its listener and admit for its credentials.
func (l *limits) serverOptions() []grpc.ServerOption {
	return append([]grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		connlimit.Messages(maxFields),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTime, MaxConnectionIdle: idleTime,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}, identity.Intercept(l.check)...)
}

// keepaliveTime is how long a connection may be silent before it is probed, and how long the client then has to
// respond. Probes detect hypervisors whose host is gone.
const keepaliveTime = 20 * time.Second

// check returns RESOURCE_EXHAUSTED for a call that exceeds a limit. It checks the caller's own limit first, so that
// calls that exceed it do not count toward the total.
func (l *limits) check(ctx context.Context, method string) error {
	own, total := l.limiter(ctx, method)
	now := l.clock.Now()
	if !own.AllowN(now, 1) || !total.AllowN(now, 1) {
		return status.Error(codes.ResourceExhausted, "too many calls; try again later")
	}
	return nil
}

func (l *limits) limiter(ctx context.Context, method string) (own, total *rate.Limiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	caller, err := identity.FromContext(ctx)
	if err != nil || method == identitypb.CertificateAuthority_Issue_FullMethodName {
		var from net.Addr
		if connected, ok := peer.FromContext(ctx); ok {
			from = connected.Addr
		}
		return remembered(l.ofAddress, connlimit.OriginOf(from), issueAddress), l.issues
	}
	return remembered(l.ofPeer, caller, callPeer), l.calls
}

// mayOpen reports whether an address may open another connection now.
func (l *limits) mayOpen(from connlimit.Origin) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return remembered(l.opens, from, openAddress).AllowN(l.clock.Now(), 1)
}

func remembered(limiters *lru.Cache, key any, b budget) *rate.Limiter {
	if found, ok := limiters.Get(key); ok {
		if limiter, ok := found.(*rate.Limiter); ok {
			return limiter
		}
	}
	limiter := b.limiter()
	limiters.Add(key, limiter)
	return limiter
}
