package ports

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Probe checks whether the guest is ready. Create it with ParseProbe.
type Probe struct {
	// url has the scheme tcp, http or https, and the port.
	url  *url.URL
	port uint16
}

// ParseProbe parses a URL without a host: tcp://:80, http://:80/healthz or https://:6443/readyz. The first one checks
// that the guest accepts connections; the others that it responds with a status from 200 to 399, as HTTP probes of
// Kubernetes do. Like those, https does not verify the certificate.
func ParseProbe(text string) (*Probe, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(parsed.Port(), 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("%q has no port between 1 and 65535", text)
	}
	switch {
	case parsed.Hostname() != "" || parsed.User != nil:
		return nil, fmt.Errorf("%q names a host", text)
	case parsed.Scheme == "tcp" && parsed.Path == "" && parsed.RawQuery == "":
	case parsed.Scheme == "http" || parsed.Scheme == "https":
	default:
		return nil, fmt.Errorf("%q is neither tcp://:PORT nor http://:PORT/PATH nor https://:PORT/PATH", text)
	}
	return &Probe{url: parsed, port: uint16(port)}, nil
}

const (
	// timeout is how long the guest may take for a check.
	timeout = 4 * time.Second
	// period and unreadyPeriod are the times between checks while the guest is ready and while it is not.
	period, unreadyPeriod = 10 * time.Second, 2 * time.Second
	// failures is the number of consecutive failures after which a guest is not ready any more.
	failures = 3
	// reasonPeriod is the time after which the reason of a guest that is not ready is reported again.
	reasonPeriod = 30 * time.Second
	// maxHeader limits the header of a response, in bytes.
	maxHeader = 64 << 10
)

// Check starts to check the guest until the server is closed or stop is called. It calls report with nil when the guest
// becomes ready, and with the reason when it is not ready. Another reason, which the guest may determine, is reported twice
// a minute at most. When stop returns, report is not called any more.
//
// ready reports whether the guest counts as ready before the first check. Then it is not ready only after as many failures as
// later, because a guest that has just migrated may be slow.
func (s *Server) Check(ready bool, report func(problem error)) (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	stopped := make(chan struct{})
	s.running.Go(func() {
		defer close(stopped)
		s.check(ctx, ready, report)
	})
	return func() {
		cancel()
		<-stopped
	}
}

func (s *Server) check(ctx context.Context, ready bool, report func(problem error)) {
	failed := failures - 1 // the first failure counts
	if ready {
		failed = 0
	}
	var wait time.Duration
	var reported time.Time
	for sleep(ctx, wait) {
		problem := s.probe.check(ctx, s.guest.DialGuest)
		switch {
		case ctx.Err() != nil:
			return
		case problem == nil:
			failed, wait, reported = 0, period, time.Time{}
			report(nil)
			continue
		}
		if failed++; failed < failures {
			wait = period
			continue
		}
		if wait = unreadyPeriod; time.Since(reported) >= reasonPeriod {
			reported = time.Now()
			report(problem)
		}
	}
}

// sleep waits. It returns false if the context is canceled.
func sleep(ctx context.Context, wait time.Duration) bool {
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// check returns nil if the guest is ready.
func (p *Probe) check(ctx context.Context, dial Dial) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	if p.url.Scheme == "tcp" {
		err = p.connect(ctx, dial)
	} else {
		err = p.request(ctx, dial)
	}
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("port %d did not respond within %s", p.port, timeout)
	}
	return err
}

func (p *Probe) connect(ctx context.Context, dial Dial) error {
	conn, err := dial(ctx, p.port)
	if err != nil {
		return fmt.Errorf("port %d does not accept connections", p.port) // the error names ports that differ each time
	}
	return conn.Close()
}

func (p *Probe) request(ctx context.Context, dial Dial) error {
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, p.port) },
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	target := *p.url
	target.Host = net.JoinHostPort("localhost", strconv.Itoa(int(p.port)))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("port %d does not respond to %s requests", p.port, strings.ToUpper(p.url.Scheme))
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("port %d responds with the HTTP status %d", p.port, response.StatusCode)
	}
	return nil
}
