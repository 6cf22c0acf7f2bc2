package nodecertificate

import (
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// Limits of the requests on which the controller decides. A node needs one certificate until it has joined, and
// another one if it restarts before it has stored the first.
const (
	// maxOfToken is the number of requests of one token that are decided immediately. After that, one is decided in
	// each tokenInterval.
	maxOfToken    = 20
	tokenInterval = time.Minute
	// maxWaiting is how many further requests of a token are decided later. All others are ignored.
	maxWaiting = 3
	// perSecond and burst limit the requests of all tokens.
	perSecond = 50
	burst     = 1000
	// totalPause is the time after which a request that exceeds the limit of all tokens is considered again.
	totalPause = 5 * time.Second
	// maxTokens is the number of tokens whose requests are remembered.
	maxTokens = 10_000
)

// limits bounds the work for the requests of guests, each of which can make any number of them. The API server
// authenticates the token of a request.
type limits struct {
	mu     sync.Mutex
	tokens *lru.Cache // *ofToken by token ID
	total  *rate.Limiter
}

// ofToken are the requests of one token.
type ofToken struct {
	limiter *rate.Limiter
	// admitted are the last requests that may be decided, which includes retries.
	admitted []types.UID
	// waiting are the requests that may be decided later. Each has the time until which it is remembered, because it
	// may be deleted.
	waiting map[types.UID]time.Time
	// announced reports whether there was an event about ignored requests.
	announced bool
}

func newLimits() *limits {
	return &limits{tokens: lru.New(maxTokens), total: rate.NewLimiter(perSecond, burst)}
}

// verdict is what to do with a request now.
type verdict struct {
	// admitted means that the request may be decided.
	admitted bool
	// after is the delay after which to consider the request again; 0 if it is ignored.
	after time.Duration
	// exceeded means that the token exceeds its limit for the first time.
	exceeded bool
}

// admit decides whether a request of a token may be decided now. Once admitted, a request stays admitted.
func (l *limits) admit(token string, request types.UID, now time.Time) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.of(token)
	if slices.Contains(of.admitted, request) {
		return verdict{admitted: true}
	}
	maps.DeleteFunc(of.waiting, func(_ types.UID, until time.Time) bool { return now.After(until) })
	// The limit of the token comes first, so that one guest cannot use up that of all.
	switch {
	case of.limiter.TokensAt(now) < 1:
		if _, waits := of.waiting[request]; !waits && len(of.waiting) >= maxWaiting {
			return verdict{exceeded: of.announce()}
		}
		of.waiting[request] = now.Add(2 * tokenInterval)
		return verdict{after: tokenInterval, exceeded: of.announce()}
	case !l.total.AllowN(now, 1):
		return verdict{after: totalPause}
	}
	of.limiter.AllowN(now, 1)
	delete(of.waiting, request)
	of.admitted = append(of.admitted, request)
	if len(of.admitted) > maxOfToken {
		of.admitted = of.admitted[1:]
	}
	return verdict{admitted: true}
}

func (l *limits) of(token string) *ofToken {
	if found, ok := l.tokens.Get(token); ok {
		if of, ok := found.(*ofToken); ok {
			return of
		}
	}
	of := &ofToken{limiter: rate.NewLimiter(rate.Every(tokenInterval), maxOfToken), waiting: map[types.UID]time.Time{}}
	l.tokens.Add(token, of)
	return of
}

// announce reports whether an event is due.
func (o *ofToken) announce() bool {
	first := !o.announced
	o.announced = true
	return first
}

// Strip removes what the controller does not need from a request before it is cached: everything that a guest chooses
// if the request is decided, and otherwise the part that is longer than a valid request. It returns other objects
// unchanged.
func Strip(object any) any {
	request, ok := object.(*certificatesv1.CertificateSigningRequest)
	switch {
	case !ok:
	case isDecided(request):
		request.Annotations, request.Labels, request.Spec.Request, request.Spec.Extra, request.Status.Certificate = nil, nil, nil, nil, nil
	case len(request.Spec.Request) > maxRequest:
		request.Spec.Request = slices.Clone(request.Spec.Request[:maxRequest+1])
	}
	return object
}
