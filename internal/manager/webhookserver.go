package manager

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// Limits for the port of the webhooks. Anyone who reaches the port can use it, because API servers do not authenticate
// themselves by default, and neither does Cluster API.
const (
	// maxWebhookClients limits connections. Each API server has one or two.
	maxWebhookClients = 256
	// maxWebhookStreams limits the concurrent requests of a connection.
	maxWebhookStreams = 64
	// maxWebhookHeaders limits the size of headers, in bytes.
	maxWebhookHeaders = 64 << 10
	// longestReview limits the size of a request, in bytes. A request contains two objects, each of which fits
	// into etcd, and metadata. maxWebhookBytes and maxWebhookBytesPerAddress limit the total size of all
	// concurrent requests.
	longestReview             = 4 << 20
	maxWebhookBytes           = 8 * longestReview
	maxWebhookBytesPerAddress = 3 * longestReview
	// maxReviewValues and maxReviewDepth limit the values of a request and their nesting. An object has a few hundred.
	maxReviewValues = 1 << 16
	maxReviewDepth  = 64
	// valueSize is the memory that a decoded value may take, in bytes: an object with one field takes about this
	// much. maxDecoded and maxDecodedPerAddress limit that of all concurrent requests.
	valueSize            = 512
	maxDecoded           = 256 << 20
	maxDecodedPerAddress = 96 << 20
	// Timeouts for a handshake and the headers, for a whole request, for a request and its response, and between
	// two requests. Clients wait for at most 30 s.
	webhookHeaderTime = 10 * time.Second
	webhookReadTime   = 30 * time.Second
	webhookWriteTime  = time.Minute
	webhookIdleTime   = 90 * time.Second
	// webhookEnd is how long requests in progress may take when the manager terminates.
	webhookEnd = 30 * time.Second
)

// webhookServer is controller-runtime's webhook server with limits.
type webhookServer struct {
	webhook.Server
	cfg Webhooks
}

func newWebhookServer(cfg Webhooks) *webhookServer {
	return &webhookServer{webhook.NewServer(webhook.Options{Port: cfg.Port, CertDir: cfg.CertDir}), cfg}
}

// Start serves until the context is canceled.
func (s *webhookServer) Start(ctx context.Context) error {
	certificate, err := certwatcher.New(filepath.Join(s.cfg.CertDir, "tls.crt"), filepath.Join(s.cfg.CertDir, "tls.key"))
	if err != nil {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(s.cfg.Port)))
	if err != nil {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	bounded := connlimit.Listen(listener, maxWebhookClients)
	secure := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, GetCertificate: certificate.GetCertificate}
	if s.cfg.HookClientCAs != "" {
		// Not all clients of this port have a certificate. The handler of the hooks verifies it.
		secure.ClientAuth = tls.RequestClientCert
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := certificate.Start(ctx); err != nil {
			ctrl.Log.Error(err, "the certificate of the webhooks is no longer reloaded", "dir", s.cfg.CertDir)
		}
		return nil
	})
	group.Go(func() error { return s.serve(ctx, tls.NewListener(bounded, secure)) })
	return group.Wait()
}

// serve serves until the context is canceled. It closes the listener.
func (s *webhookServer) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           connlimit.Bodies(limitDecoding(s.WebhookMux()), longestReview, maxWebhookBytes, maxWebhookBytesPerAddress),
		ReadHeaderTimeout: webhookHeaderTime, ReadTimeout: webhookReadTime, WriteTimeout: webhookWriteTime, IdleTimeout: webhookIdleTime,
		MaxHeaderBytes: maxWebhookHeaders,
		ConnState:      connlimit.AnonymousHTTP,
		// Anyone can cause failed handshakes, so they are logged only with higher verbosity.
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(ctrl.Log.WithName("webhooks").V(1)), slog.LevelInfo),
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: maxWebhookStreams},
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving webhooks: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), webhookEnd)
	defer cancel()
	if err := server.Shutdown(end); err != nil {
		return fmt.Errorf("shutting down webhooks: %w", errors.Join(err, server.Close()))
	}
	return nil
}
