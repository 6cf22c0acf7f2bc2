package service

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Limits of connections, and of the calls on each connection.
const (
	// maxConnections limits open connections of hypervisors, after the handshake.
	maxConnections = 8192
	// maxAnonymous limits connections in a handshake, and those without a certificate. anonymousTime is how long the
	// latter may be open.
	maxAnonymous  = 512
	anonymousTime = 30 * time.Second
	// maxPerPeer limits the connections of one identity. A hypervisor has one connection, but the next process in its
	// Pod may connect before the server has noticed that the last one exited.
	maxPerPeer = 4
	// idleTime is how long a connection may be without a call. Hypervisors always have a call open.
	idleTime = 5 * time.Minute
	// maxStreams limits the concurrent calls on a connection. Hypervisors make up to five.
	maxStreams = 8
	// maxMessage and maxHeaders limit the size of requests, in bytes. The longest request contains a token and a
	// certificate request.
	maxMessage = 64 << 10
	maxHeaders = 16 << 10
	// maxFields limits the fields of a request.
	maxFields = 4096
)

// Limits of calls per second, with the size of a burst. Each certificate takes a TokenReview and two more requests to
// the API server. Certificates of Pods are for callers with the address of a hypervisor's Pod, or its host; all others
// share reviewOthers, so they cannot keep these Pods from getting certificates. A certificate is valid for a day.
var (
	issueAddress = budget{5, 100}
	reviewPod    = budget{0.1, 5}
	reviewPods   = budget{50, 1000}
	reviewOthers = budget{10, 200}
	callTotal    = budget{1000, 10_000}
	callPeer     = budget{10, 40}
	// callVM is what the hypervisors of a VM may use in addition to callTotal, which hypervisors of others may use up. It is
	// enough for a hypervisor that loses its connection several times. All connections together may use it less often than
	// callTotal.
	callVM = budget{0.1, 20}
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
	// renewals returns how often the hypervisor in a Pod may request the lease of its VM, per second; 0 if it needs no
	// lease that expires. If nil, no VM has such leases.
	renewals func(ctx context.Context, vm types.NamespacedName, pod string) float64

	peers        *connlimit.Counter // keyed by identity.Peer
	pods, others *rate.Limiter      // of token reviews
	calls        *rate.Limiter

	mu        sync.Mutex
	ofAddress *lru.Cache // *rate.Limiter by origin
	ofPod     *lru.Cache // *rate.Limiter by types.UID
	ofPeer    *lru.Cache // *rate.Limiter by identity.Peer
	ofVM      *lru.Cache // *rate.Limiter of other calls by types.NamespacedName
	renewing  *lru.Cache // *rate.Limiter of renewals by types.NamespacedName
}

// newLimits returns limits without any connections.
func newLimits(clock clock.PassiveClock) *limits {
	return &limits{
		clock: clock,
		peers: connlimit.NewCounter(maxConnections, maxPerPeer),
		pods:  reviewPods.limiter(), others: reviewOthers.limiter(), calls: callTotal.limiter(),
		ofAddress: lru.New(maxRemembered), ofPod: lru.New(maxRemembered), ofPeer: lru.New(maxRemembered), ofVM: lru.New(maxRemembered),
		renewing: lru.New(maxRemembered),
	}
}

// serverOptions returns the options for a server. Use listen for its listener and admit for its credentials.
func (l *limits) serverOptions() []grpc.ServerOption {
	return append([]grpc.ServerOption{
		grpc.ConnectionTimeout(connlimit.HandshakeTimeout),
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
// calls that exceed it do not count toward those of others.
func (l *limits) check(ctx context.Context, method string) error {
	own, shared := l.limiter(ctx, method)
	now := l.clock.Now()
	allows := func(limiter *rate.Limiter) bool { return limiter.AllowN(now, 1) }
	if !allows(own) || len(shared) > 0 && !slices.ContainsFunc(shared, allows) {
		return errTooMany
	}
	return nil
}

var errTooMany = status.Error(codes.ResourceExhausted, "too many calls; try again later")

// admitReview returns errTooMany for a token that exceeds the limits of reviews. It implements TokenReviewer.Admit.
// Others could know the name of a Pod, and use its address if hosts translate addresses, so a Pod may also use what is
// left for others.
func (l *limits) admitReview(_ context.Context, pod types.UID) error {
	now := l.clock.Now()
	if pod != "" && l.ofKey(l.ofPod, pod, reviewPod).AllowN(now, 1) && l.pods.AllowN(now, 1) {
		return nil
	}
	if !l.others.AllowN(now, 1) {
		return errTooMany
	}
	return nil
}

// limiter returns the limits of a call: the caller's own, and those that it shares with others, one of which must allow the
// call. Requests for certificates share limits in admitReview.
func (l *limits) limiter(ctx context.Context, method string) (own *rate.Limiter, shared []*rate.Limiter) {
	caller, err := identity.FromContext(ctx)
	if err != nil || method == identitypb.CertificateAuthority_Issue_FullMethodName {
		var from net.Addr
		if connected, ok := peer.FromContext(ctx); ok {
			from = connected.Addr
		}
		return l.ofKey(l.ofAddress, connlimit.OriginOf(from), issueAddress), nil
	}
	if own := l.renewal(ctx, caller, method); own != nil {
		return own, nil
	}
	ofVM := l.ofKey(l.ofVM, vmOf(caller), callVM)
	return l.ofKey(l.ofPeer, caller, callPeer), []*rate.Limiter{ofVM, l.calls}
}

// renewalBurst is the burst of renewals of a VM: those of a hypervisor that has lost its connection several times.
const renewalBurst = 10

// renewal returns the limit of a call that renews a lease; nil for other calls. Each VM has its own limit and there is
// no total, because the controller starts no more VMs than it has capacity for. So no hypervisor, and no number of them,
// can keep another one from renewing its lease.
func (l *limits) renewal(ctx context.Context, caller identity.Peer, method string) *rate.Limiter {
	if l.renewals == nil || method != vmpb.VMController_RunLease_FullMethodName {
		return nil
	}
	vm := vmOf(caller)
	perSecond := rate.Limit(l.renewals(ctx, vm, caller.Pod))
	if perSecond == 0 {
		return nil
	}
	own := l.ofKey(l.renewing, vm, budget{perSecond, renewalBurst})
	if own.Limit() != perSecond { // the VM has leases of another duration
		own.SetLimitAt(l.clock.Now(), perSecond)
	}
	return own
}

func vmOf(caller identity.Peer) types.NamespacedName {
	return types.NamespacedName{Namespace: caller.Namespace, Name: caller.VM}
}

// ofKey returns the limiter of a key.
func (l *limits) ofKey(limiters *lru.Cache, key any, b budget) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found, ok := limiters.Get(key); ok {
		if limiter, ok := found.(*rate.Limiter); ok {
			return limiter
		}
	}
	limiter := b.limiter()
	limiters.Add(key, limiter)
	return limiter
}
