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

// Limits of the port of the webhooks, which anybody may use who reaches it: neither API servers nor Cluster API
// show who they are.
const (
	// maxWebhookClients and maxWebhookClientsPerAddress bound connections. Each API server has one or two.
	maxWebhookClients           = 256
	maxWebhookClientsPerAddress = 64
	// maxWebhookStreams bounds the requests at a time of a connection.
	maxWebhookStreams = 64
	// maxWebhookHeaders is in bytes.
	maxWebhookHeaders = 64 << 10
	// longestReview bounds a request, in bytes: two objects, each of which fits into etcd, and what is around
	// them. maxWebhookBytes and maxWebhookBytesPerAddress bound all requests at a time.
	longestReview             = 8 << 20
	maxWebhookBytes           = 8 * longestReview
	maxWebhookBytesPerAddress = 3 * longestReview
	// Times for a handshake and the headers, for a whole request, for it and its answer, and between two
	// requests. Who calls waits for 30 s at most.
	webhookHeaderTime = 10 * time.Second
	webhookReadTime   = 30 * time.Second
	webhookWriteTime  = time.Minute
	webhookIdleTime   = 90 * time.Second
	// webhookEnd is how long requests may go on when the manager ends.
	webhookEnd = 30 * time.Second
)

// webhookServer is controller-runtime's, within limits.
type webhookServer struct {
	webhook.Server
	cfg Webhooks
}

func newWebhookServer(cfg Webhooks) *webhookServer {
	return &webhookServer{webhook.NewServer(webhook.Options{Port: cfg.Port, CertDir: cfg.CertDir}), cfg}
}

// Start serves until the context ends.
func (s *webhookServer) Start(ctx context.Context) error {
	certificate, err := certwatcher.New(filepath.Join(s.cfg.CertDir, "tls.crt"), filepath.Join(s.cfg.CertDir, "tls.key"))
	if err != nil {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(s.cfg.Port)))
	if err != nil {
		return fmt.Errorf("serving webhooks: %w", err)
	}
	bounded := connlimit.Listen(listener, maxWebhookClients, maxWebhookClientsPerAddress)
	secure := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, GetCertificate: certificate.GetCertificate}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := certificate.Start(ctx); err != nil {
			ctrl.Log.Error(err, "the certificate of the webhooks is read no more when it changes", "dir", s.cfg.CertDir)
		}
		return nil
	})
	group.Go(func() error { return s.serve(ctx, tls.NewListener(bounded, secure)) })
	return group.Wait()
}

// serve serves until the context ends. It closes the listener.
func (s *webhookServer) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           connlimit.Bodies(s.WebhookMux(), longestReview, maxWebhookBytes, maxWebhookBytesPerAddress),
		ReadHeaderTimeout: webhookHeaderTime, ReadTimeout: webhookReadTime, WriteTimeout: webhookWriteTime, IdleTimeout: webhookIdleTime,
		MaxHeaderBytes: maxWebhookHeaders,
		// Handshakes that fail are those of strangers.
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
		return fmt.Errorf("ending webhooks: %w", errors.Join(err, server.Close()))
	}
	return nil
}
