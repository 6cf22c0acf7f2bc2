// Package load sends requests to an HTTP service continuously and counts failures.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Generator sends requests. Use New.
type Generator struct {
	Config

	mu    sync.Mutex
	count Count
	next  int
}

// Config is what a Generator needs. All fields are required.
type Config struct {
	// Targets returns the addresses through which the service can be reached now. They are used in turn.
	Targets func() []netip.AddrPort
	// Dial connects to one of the targets.
	Dial func(context.Context, netip.AddrPort) (net.Conn, error)
	// Every is the time from one request to the next, regardless of responses.
	Every time.Duration
	// Timeout is how long a response may take. Requests are not retried.
	Timeout time.Duration
}

// Count is the result of the requests so far.
type Count struct {
	// Succeeded counts the requests with status 200 and a complete body, Failed all other completed requests.
	Succeeded, Failed int
	// Slowest is the longest response time of a successful request.
	Slowest time.Duration
	// Failures describes the first failed requests.
	Failures []string
}

// keptFailures is the maximum number of failures in a Count.
const keptFailures = 10

// String returns the numbers as text.
func (c Count) String() string {
	return fmt.Sprintf("%d succeeded, %d failed, slowest %.1f s", c.Succeeded, c.Failed, c.Slowest.Seconds())
}

// New returns a generator that has not sent any requests.
func New(config Config) *Generator { return &Generator{Config: config} }

// Count returns the result of the requests so far.
func (g *Generator) Count() Count {
	g.mu.Lock()
	defer g.mu.Unlock()
	count := g.count
	count.Failures = slices.Clone(count.Failures)
	return count
}

// Run sends requests until the context is done, and then waits for the last responses.
func (g *Generator) Run(ctx context.Context) {
	ticker := time.NewTicker(g.Every)
	defer ticker.Stop()
	var open sync.WaitGroup
	defer open.Wait()
	for ctx.Err() == nil {
		open.Go(func() { g.send(context.WithoutCancel(ctx)) })
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func (g *Generator) send(ctx context.Context) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	target, err := g.target()
	if err == nil {
		err = g.Get(ctx, target, "/")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		g.count.Succeeded++
		g.count.Slowest = max(g.count.Slowest, time.Since(begin))
		return
	}
	g.count.Failed++
	if len(g.count.Failures) < keptFailures {
		g.count.Failures = append(g.count.Failures, fmt.Sprintf("sent at %s, failed after %.1f s: %v",
			begin.Format(time.TimeOnly), time.Since(begin).Seconds(), err))
	}
}

var errNoTarget = errors.New("no node forwards to the service")

// target returns the next target.
func (g *Generator) target() (netip.AddrPort, error) {
	all := g.Targets()
	if len(all) == 0 {
		return netip.AddrPort{}, errNoTarget
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next++
	return all[g.next%len(all)], nil
}

// Get sends one request on a new connection. It returns an error unless the status is 200 and the body is
// complete.
func (c *Config) Get(ctx context.Context, target netip.AddrPort, path string) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx, target) },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target.String()+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("%s: reading the response: %w", target, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s returned %s", target, response.Status)
	}
	return nil
}
