// Package limits bounds what peers may use of the VM controller's port.
//
// A peer is known by its address until the handshake has ended, and then by its certificate.
// A peer without a certificate can only ask for one, and has to do that at once. All limits
// are far above what hypervisors need, so a refused call is repeated later by a good one.
package limits

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

// Limits of connections and of what each may carry.
const (
	// maxConnections and maxPerAddress bound open connections, also during the handshake.
	// All hypervisors of a host may have its address.
	maxConnections = 8192
	maxPerAddress  = 1024
	// maxAnonymous, maxAnonymousPerAddress and anonymousTime bound connections without a
	// certificate.
	maxAnonymous           = 256
	maxAnonymousPerAddress = 64
	anonymousTime          = 30 * time.Second
	// maxPerPeer bounds the connections of a certificate's identity. A hypervisor has one, and
	// another process in its Pod may follow it before the server has noticed its end.
	maxPerPeer = 4
	// handshakeTime is how long a connection may take to be useful.
	handshakeTime = 10 * time.Second
	// idleTime is how long a connection may carry no call. Hypervisors always have one.
	idleTime = 5 * time.Minute
	// maxStreams bounds the calls at a time of a connection. Hypervisors have up to three.
	maxStreams = 8
	// maxMessage and maxHeaders bound requests, in bytes. The longest has a token and a
	// certificate request.
	maxMessage = 64 << 10
	maxHeaders = 16 << 10
)

// Rates of connections and calls per second, and how many may come at once. A certificate costs a TokenReview
// and two other requests to the API server.
var (
	openAddress  = budget{50, 1000} // connections
	issueTotal   = budget{20, 200}
	issueAddress = budget{5, 100}
	callTotal    = budget{1000, 10_000}
	callPeer     = budget{10, 40}
)

// maxRemembered is how many addresses, and how many peers, have a rate of their own at a time.
const maxRemembered = 16_384

type budget struct {
	perSecond rate.Limit
	burst     int
}

func (b budget) limiter() *rate.Limiter { return rate.NewLimiter(b.perSecond, b.burst) }

// Limits are those of one server. Make one with New.
type Limits struct {
	clock clock.PassiveClock

	connections, anonymous *connlimit.Counter
	peers                  *connlimit.Counter
	issues, calls          *rate.Limiter

	mu        sync.Mutex
	opens     *lru.Cache // *rate.Limiter by origin
	ofAddress *lru.Cache // *rate.Limiter by origin
	ofPeer    *lru.Cache // *rate.Limiter by identity.Peer
}

// New returns limits that count nothing yet.
func New(clock clock.PassiveClock) *Limits {
	return &Limits{
		clock:       clock,
		connections: connlimit.NewCounter(maxConnections, maxPerAddress),
		anonymous:   connlimit.NewCounter(maxAnonymous, maxAnonymousPerAddress),
		peers:       connlimit.NewCounter(maxConnections, maxPerPeer),
		issues:      issueTotal.limiter(), calls: callTotal.limiter(),
		opens: lru.New(maxRemembered), ofAddress: lru.New(maxRemembered), ofPeer: lru.New(maxRemembered),
	}
}

// ServerOptions are for the server that Listen listens for. Admit belongs to its credentials.
func (l *Limits) ServerOptions() []grpc.ServerOption {
	return append([]grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTime, MaxConnectionIdle: idleTime,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2, PermitWithoutStream: true}),
	}, identity.Intercept(l.check)...)
}

// keepaliveTime is how long a connection may be silent before it is probed, and then how
// long the other end has to answer. It finds hypervisors whose host is gone.
const keepaliveTime = 20 * time.Second

// check answers RESOURCE_EXHAUSTED to a call that is over a limit. That of the caller comes
// first, so that refused calls leave the total to others.
func (l *Limits) check(ctx context.Context, method string) error {
	own, total := l.limiter(ctx, method)
	now := l.clock.Now()
	if !own.AllowN(now, 1) || !total.AllowN(now, 1) {
		return status.Error(codes.ResourceExhausted, "too many calls; try again later")
	}
	return nil
}

func (l *Limits) limiter(ctx context.Context, method string) (own, total *rate.Limiter) {
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
func (l *Limits) mayOpen(from connlimit.Origin) bool {
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
