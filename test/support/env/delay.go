package env

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/rest"
)

// DelayVariable is the environment variable with a duration, for example 300ms. If it is set, Admin takes up to this
// time longer for each write and each watch event, and a quarter of it for each read. This reveals tests that expect two
// steps of a controller to be visible together, or a cache to be up to date. Client has no delay, so that such a test sees the
// first step early. The delays are random, so they are no part of a normal run.
const DelayVariable = "MILLWRIGHT_TEST_DELAY"

// delay makes a client configuration slower if DelayVariable is set.
func delay(config *rest.Config) error {
	value := os.Getenv(DelayVariable)
	if value == "" {
		return nil
	}
	longest, err := time.ParseDuration(value)
	if err != nil {
		return fmt.Errorf("%s: %w", DelayVariable, err)
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return delayed{next, longest} })
	return nil
}

// delayed is a transport with random delays.
type delayed struct {
	next    http.RoundTripper
	longest time.Duration
}

func pause(longest time.Duration) { time.Sleep(rand.N(longest + 1)) }

// RoundTrip delays the request and the response of a write, the request of a read, and each part of the response to a
// watch.
func (d delayed) RoundTrip(request *http.Request) (*http.Response, error) {
	write := request.Method != http.MethodGet
	if write {
		pause(d.longest / 2)
	} else {
		pause(d.longest / 4)
	}
	response, err := d.next.RoundTrip(request)
	switch {
	case err != nil:
	case write:
		pause(d.longest / 2)
	case request.URL.Query().Has("watch"):
		response.Body = delayedBody{response.Body, d.longest}
	}
	return response, err
}

// delayedBody delays each part of a body.
type delayedBody struct {
	io.ReadCloser
	longest time.Duration
}

func (b delayedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	pause(b.longest)
	return n, err
}
