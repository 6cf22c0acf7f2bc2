package connlimit

import (
	"net"
	"net/http"
	"net/netip"
)

// Requests limits the concurrent requests of a handler: total for all addresses, and perAddress for each.
// Requests over the limits get the response 429 Too Many Requests, and are not read.
func Requests(next http.Handler, total, perAddress int) http.Handler {
	return &requests{next, NewCounter(total, perAddress), func(*http.Request) int { return 1 }}
}

// leastRequest is the number of bytes that a request without a body counts as.
const leastRequest = 64 << 10

// Bodies limits the bytes of request bodies that a handler keeps until it has responded: longest for one body,
// total for all concurrent bodies, and perAddress for those of each address. A body without a length counts as
// longest. Requests over the limits get the response 413 or 429, and are not read.
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
	release, ok := b.open.TakeSome(OriginOfRequest(r), b.cost(r))
	if !ok {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many concurrent requests", http.StatusTooManyRequests)
		return
	}
	defer release()
	b.next.ServeHTTP(w, r)
}

// OriginOfRequest returns the origin of the connection of a request. Headers are ignored.
func OriginOfRequest(r *http.Request) Origin {
	address, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return Origin{}
	}
	return OriginOf(net.TCPAddrFromAddrPort(address))
}
