package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"
	certutil "k8s.io/client-go/util/cert"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/flood"
	"github.com/millwright-dev/millwright/test/support/freeport"
)

// webhookCertificate returns a directory with the certificate of a webhook server at 127.0.0.1, and the
// certificate.
func webhookCertificate(t *testing.T) (dir string, certificate []byte) {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, data := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, certificate
}

// TestWebhooks_LimitConnections checks that clients that keep opening connections or sending long requests exhaust
// neither the file descriptors nor the memory of the process, and that other clients are still served.
func TestWebhooks_LimitConnections(t *testing.T) {
	address := freeport.Address(t)
	dir, _ := webhookCertificate(t)
	server := Webhooks{Port: int(address.Port()), CertDir: dir}.server()
	came, free := make(chan struct{}), make(chan struct{})
	server.Register("/slow", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		came <- struct{}{}
		<-free
	}))
	server.Register("/quick", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	ask := func(from net.IP, path string, length int) (int, error) {
		transport := &http.Transport{
			DialContext:       (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			ForceAttemptHTTP2: true, DisableKeepAlives: true,
		}
		response, err := (&http.Client{Transport: transport}).Post("https://"+address.String()+path, "application/json", strings.NewReader(strings.Repeat(" ", length)))
		if err != nil {
			return 0, err
		}
		return response.StatusCode, errors.Join(response.Body.Close(), protocol(response))
	}
	us, stranger := net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 3)
	g := gomega.NewWithT(t)
	g.Eventually(func() (int, error) { return ask(us, "/quick", 1) }).WithTimeout(env.WaitTimeout).Should(gomega.Equal(http.StatusOK))

	flood.Past(t, address.String(), maxWebhookClients)
	for range maxWebhookBytesPerAddress / longestReview {
		go func() { _, _ = ask(stranger, "/slow", longestReview) }()
		<-came
	}
	for _, tc := range []struct {
		from   net.IP
		path   string
		length int
		want   int
	}{
		{stranger, "/quick", 1, http.StatusTooManyRequests},
		{us, "/quick", longestReview, http.StatusOK},
		{us, "/quick", longestReview + 1, http.StatusRequestEntityTooLarge},
	} {
		if got, err := ask(tc.from, tc.path, tc.length); err != nil || got != tc.want {
			t.Errorf("%d bytes of %s to %s: %d, %v, want %d", tc.length, tc.from, tc.path, got, err, tc.want)
		}
	}
	close(free)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the server returned %v", err)
	}
}

// protocol fails if a response was not sent over HTTP/2, which API servers use.
func protocol(response *http.Response) error {
	if response.ProtoMajor != 2 {
		return fmt.Errorf("response over %s", response.Proto)
	}
	return nil
}

// onePipe is a listener with one connection.
type onePipe struct {
	conn chan net.Conn
	end  chan struct{}
}

func (p onePipe) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conn:
		return conn, nil
	case <-p.end:
		return nil, net.ErrClosed
	}
}
func (p onePipe) Close() error   { close(p.end); return nil }
func (p onePipe) Addr() net.Addr { return &net.TCPAddr{} }

// TestWebhooks_DisconnectSlowClients checks that clients that send a request, or read its response, at a byte per second
// are disconnected.
func TestWebhooks_DisconnectSlowClients(t *testing.T) {
	for name, tc := range map[string]struct {
		sent    string
		timeout time.Duration
	}{
		"headers": {"POST /echo HTTP/1.1\r\nHost: a\r\n", webhookHeaderTime},
		"a body":  {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", webhookReadTime},
		"nothing": {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", webhookIdleTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := newWebhookServer(Webhooks{Port: 1})
				server.Register("/echo", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
				ctx, stop := context.WithCancel(t.Context())
				ours, theirs := net.Pipe()
				listener := onePipe{make(chan net.Conn, 1), make(chan struct{})}
				listener.conn <- theirs
				ended := make(chan error, 1)
				go func() { ended <- server.serve(ctx, listener) }()
				begin := time.Now()
				var client sync.WaitGroup
				client.Go(func() {
					_, err := io.WriteString(ours, tc.sent)
					for err == nil && name != "nothing" {
						time.Sleep(time.Second)
						_, err = io.WriteString(ours, " ")
					}
				})
				_, _ = io.Copy(io.Discard, ours)
				if took := time.Since(begin); took > tc.timeout+2*time.Second {
					t.Errorf("the connection is closed after %s, want %s", took, tc.timeout)
				}
				_ = ours.Close()
				stop()
				client.Wait()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
