package connlimit

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// ask sends a request with a body of the given size, and returns the status. If the size is negative, the request
// has no content length.
func ask(handler http.Handler, from string, length int) int {
	request := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(make([]byte, max(length, -length))))
	request.RemoteAddr = from
	if length < 0 {
		request.ContentLength = -1
	}
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, request)
	return response.Code
}

// held is a handler whose requests block after they have read their body.
type held struct{ came, free chan struct{} }

func (h held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.came <- struct{}{}
	<-h.free
}

const one, other, third = "192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"

// hold sends a request that blocks.
func (h held) hold(handler http.Handler, from string, length int) {
	go ask(handler, from, length)
	<-h.came
}

func TestRequests(t *testing.T) {
	h := held{make(chan struct{}), make(chan struct{})}
	defer close(h.free)
	handler := Requests(h, 3, 2)
	h.hold(handler, one, 0)
	h.hold(handler, one, 0)
	if got := ask(handler, "192.0.2.1:9", 0); got != http.StatusTooManyRequests {
		t.Errorf("a third of one address: %d", got)
	}
	h.hold(handler, other, 0)
	if got := ask(handler, third, 0); got != http.StatusTooManyRequests {
		t.Errorf("a fourth in total: %d", got)
	}
	h.free <- struct{}{}
}

// TestRequests_LimitBodies checks that pending requests use capacity, in total and per address.
func TestRequests_LimitBodies(t *testing.T) {
	const longest = 1 << 20
	for name, tc := range map[string]struct {
		// waiting contains the lengths of the pending requests of one address.
		waiting []int
		from    string
		length  int
		want    int
	}{
		"one that is too long":                       {nil, one, longest + 1, http.StatusRequestEntityTooLarge},
		"one that is too long, of unknown length":    {nil, one, -longest - 1, http.StatusBadRequest},
		"too much of one address":                    {[]int{longest, longest}, one, longest, http.StatusTooManyRequests},
		"too much of one address, of unknown length": {[]int{-1, -1}, one, 1, http.StatusTooManyRequests},
		"a short one of an address below its limit":  {[]int{longest}, one, 1, http.StatusOK},
		"one of another address":                     {[]int{longest, longest}, other, longest, http.StatusOK},
		"without a body, after many without a body":  {make([]int, 2*longest/leastRequest), one, 0, http.StatusTooManyRequests},
		"another address, after many without a body": {make([]int, 2*longest/leastRequest), other, 0, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			h := held{make(chan struct{}), make(chan struct{})}
			handler := Bodies(h, longest, 3*longest, 2*longest)
			for _, length := range tc.waiting {
				h.hold(handler, one, length)
			}
			status := make(chan int)
			go func() { status <- ask(handler, tc.from, tc.length) }()
			if tc.want == http.StatusOK {
				<-h.came
				close(h.free)
			} else {
				defer close(h.free)
			}
			if got := <-status; got != tc.want {
				t.Errorf("status %d, want %d", got, tc.want)
			}
		})
	}
}
