package manager

import (
	"errors"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

var errLeasesExpired = errors.New("the leases were not renewed in time, probably because this process was suspended, so another manager may have acquired them")

// expired reports whether this process has held the leases, but has not renewed them for the renew deadline. A process that
// was suspended continues where it was. It could begin requests and tasks before it reads that another process holds the
// leases.
func (l *lock) expired() bool {
	renewed := l.renewed.Load()
	return renewed != nil && time.Since(*renewed) > l.deadline
}

// fence returns a copy of a configuration whose writes are refused while the leases are expired. Requests that were sent
// before cannot be stopped.
func (l *lock) fence(config *rest.Config) *rest.Config {
	if config == nil {
		return nil
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return fenced{l, next} })
	return config
}

type fenced struct {
	lock *lock
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f fenced) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet && f.lock.expired() {
		if request.Body != nil {
			_ = request.Body.Close() // as http.RoundTripper requires
		}
		return nil, errLeasesExpired
	}
	return f.next.RoundTrip(request)
}
