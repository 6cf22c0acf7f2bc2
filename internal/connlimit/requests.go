package connlimit

import (
	"net"
	"net/http"
	"net/netip"
)

// Requests bounds the requests that a handler carries out at a time: that many in total, and of each address.
// What is beyond the bounds is answered with 429 Too Many Requests, and nothing of it is read.
func Requests(next http.Handler, total, perAddress int) http.Handler {
	return &requests{next, NewCounter(total, perAddress), func(*http.Request) int { return 1 }}
}

// leastRequest is what a request without a body counts as, in bytes.
const leastRequest = 64 << 10

// Bodies bounds, in bytes, what a handler may be sent, which it keeps until it has answered: a body, and all bodies
// at a time, in total and of each address. One without a length counts as the longest. What is beyond the bounds
// is answered with 413 or 429, and nothing of it is read.
func Bodies(next http.Handler, longest, total, perAddress int) http.Handler {
	limited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > int64(longest) {
			http.Error(w, "the body is too long", http.StatusRequestEntityTooLarge)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, int64(longest))
		next.ServeHTTP(w, r)
	})
	return &requests{limited, NewCounter(total, perAddress), func(r *http.Request) int {
		if r.ContentLength < 0 {
			return longest
		}
		return int(min(max(r.ContentLength, leastRequest), int64(longest)))
	}}
}

type requests struct {
	next http.Handler
	open *Counter
	cost func(*http.Request) int
}

// ServeHTTP implements http.Handler.
func (b *requests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	release, ok := b.open.TakeSome(originOfRequest(r), b.cost(r))
	if !ok {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests at a time", http.StatusTooManyRequests)
		return
	}
	defer release()
	b.next.ServeHTTP(w, r)
}

// originOfRequest is that of the connection. What headers say counts for nothing.
func originOfRequest(r *http.Request) Origin {
	address, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return Origin{}
	}
	return OriginOf(net.TCPAddrFromAddrPort(address))
}
