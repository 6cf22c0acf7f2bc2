package ui

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/millwright-dev/millwright/internal/ca"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/ui"
)

// shared are the flags for a page that many users share.
type shared struct {
	inCluster         bool
	urls              []string
	certFile, keyFile string
	trustedProxies    []string
	maxSessions       int
	maxPerUser        int
	maxPerAddress     int
	idleTimeout       time.Duration
}

// add adds the flags to those of the command.
func (s *shared) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.inCluster, "in-cluster", false, "serve the page to many users, each with their own bearer token, for the cluster of this Pod, or that of --kubeconfig without its credentials")
	cmd.Flags().StringSliceVar(&s.urls, "url", nil, "with --in-cluster, address of the page in browsers; may be repeated for other host names")
	cmd.Flags().StringVar(&s.certFile, "tls-cert-file", "", "with --in-cluster, certificate of the page, which is reloaded when it changes; defaults to a self-signed one")
	cmd.Flags().StringVar(&s.keyFile, "tls-private-key-file", "", "with --in-cluster, private key of --tls-cert-file")
	cmd.Flags().StringSliceVar(&s.trustedProxies, "trusted-proxies", nil, "with --in-cluster, networks of proxies whose header X-Forwarded-For is trusted, such as 10.0.0.0/8")
	cmd.Flags().IntVar(&s.maxSessions, "max-sessions", 50, "with --in-cluster, maximum number of sessions; each watches the cluster and has caches of its own")
	cmd.Flags().IntVar(&s.maxPerUser, "max-sessions-per-user", 10, "with --in-cluster, maximum number of sessions of one user")
	cmd.Flags().IntVar(&s.maxPerAddress, "max-sessions-per-address", 10, "with --in-cluster, maximum number of sessions from one client address; proxies that are not in --trusted-proxies count as one client")
	cmd.Flags().DurationVar(&s.idleTimeout, "session-idle-timeout", 15*time.Minute, "with --in-cluster, time after which a session without open tabs expires")
}

func (s *shared) validate(f *flags, wrong *args.Problems) {
	if !s.inCluster {
		wrong.If(len(s.urls)+len(s.trustedProxies) > 0 || s.certFile != "" || s.keyFile != "", "--url, --trusted-proxies, --tls-cert-file and --tls-private-key-file need --in-cluster")
		return
	}
	wrong.If(len(s.urls) == 0, "--url: set the address of the page in browsers, such as https://machines.example.com/")
	wrong.If((s.certFile == "") != (s.keyFile == ""), "--tls-cert-file and --tls-private-key-file: set both or neither")
	wrong.If(s.maxSessions < 1 || s.maxPerUser < 1 || s.maxPerAddress < 1, "--max-sessions, --max-sessions-per-user and --max-sessions-per-address: must be at least 1")
	wrong.If(s.idleTimeout < time.Minute, "--session-idle-timeout: must be at least 1m")
	wrong.If(f.host != "", "--host: cannot be used with --in-cluster; set --url")
	// A token is sent only to the cluster that it is for, and all users would see the metrics of a URL.
	wrong.If(f.target != "" && f.target != connect.None, `--target-kubeconfig: with --in-cluster, the only value is %q`, connect.None)
	wrong.If(f.metricsURL != "" && f.metricsURL != connect.None, `--metrics-url: with --in-cluster, the only value is %q`, connect.None)
	_, err := parseURLs(s.urls)
	wrong.If(err != nil, "--url: %v", err)
	_, err = parseNetworks(s.trustedProxies)
	wrong.If(err != nil, "--trusted-proxies: %v", err)
}

// parseURLs parses the addresses of the page. Without TLS, they must be those of the browser's own host.
func parseURLs(texts []string) ([]*url.URL, error) {
	var urls []*url.URL
	origins := map[string]bool{}
	for _, text := range texts {
		of, err := url.Parse(text)
		if err != nil || of.Host == "" || of.User != nil || of.RawQuery != "" || of.Fragment != "" {
			return nil, fmt.Errorf("%q is not the address of a page; use an address such as https://machines.example.com/", text)
		}
		if of.Scheme != "https" && (of.Scheme != "http" || !isLoopback(of.Hostname())) {
			return nil, fmt.Errorf("%q: browsers would send tokens without TLS; use https, or http with localhost", text)
		}
		// Browsers send host names in lower case, and ports only if they are not those of the scheme.
		of.Host = strings.ToLower(strings.TrimSuffix(of.Host, map[string]string{"https": ":443", "http": ":80"}[of.Scheme]))
		if !strings.HasSuffix(of.Path, "/") {
			of.Path += "/"
		}
		origin := of.Scheme + "://" + of.Host
		if origins[origin] {
			return nil, fmt.Errorf("%q: there is another address of the same host; use different host names", text)
		}
		origins[origin] = true
		urls = append(urls, of)
	}
	return urls, nil
}

func parseNetworks(texts []string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a network; use the form 10.0.0.0/8", text)
		}
		networks = append(networks, network.Masked())
	}
	return networks, nil
}

// Limits of the server of a shared page.
const (
	// maxConnections limits the connections of clients that have not logged in.
	maxConnections  = 512
	idleConnection  = 2 * time.Minute
	maxHeader       = 64 << 10 // tokens can be long
	identifyTimeout = 10 * time.Second
)

// runShared serves the page to many users until the command is interrupted.
func (f *flags) runShared(cmd *cobra.Command, version string) error {
	config, namespace, err := f.anonymous()
	if err != nil {
		return err
	}
	urls, err := parseURLs(f.urls)
	if err != nil {
		return err
	}
	networks, err := parseNetworks(f.trustedProxies)
	if err != nil {
		return err
	}
	server := ui.NewShared(ui.SharedOptions{
		Open: func(token, entered string) (ui.Options, error) {
			return f.optionsFor(config, token, cmp.Or(entered, f.Namespace), namespace, version)
		},
		Identify: func(ctx context.Context, token string) (string, error) { return identify(ctx, config, token) },
		URLs:     urls, TrustedProxies: networks, IdleTimeout: f.idleTimeout,
		MaxSessions: f.maxSessions, MaxSessionsPerUser: f.maxPerUser, MaxSessionsPerAddress: f.maxPerAddress,
	})
	certificate, err := f.certificate(cmd.Context(), urls)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(f.port)))
	if err != nil {
		return fmt.Errorf("cannot serve the page: %w; choose another --port", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "Serving the page at %s on %s.\n", urls[0], listener.Addr())
	page := &http.Server{
		Handler: server, IdleTimeout: idleConnection, MaxHeaderBytes: maxHeader, ConnState: connlimit.AnonymousHTTP, ConnContext: ui.ConnContext,
	}
	// WebSockets hijack their connections, which HTTP/2 does not support.
	secure := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: certificate}
	return serve(cmd.Context(), tls.NewListener(connlimit.Listen(listener, maxConnections), secure), page, server.Run)
}

// anonymous returns the configuration of the cluster without credentials, and the namespace of this Pod or of the context.
func (f *flags) anonymous() (*rest.Config, string, error) {
	if f.File == "" && f.Dir == "" {
		return connect.WithoutCredentials()
	}
	config, namespace, err := f.Load()
	if err != nil {
		return nil, "", err
	}
	return rest.AnonymousClientConfig(config), namespace, nil
}

// withToken returns the configuration for the user of a token.
func withToken(config *rest.Config, token string) *rest.Config {
	config = rest.CopyConfig(config)
	config.BearerToken = token
	return config
}

// optionsFor returns the page for the user of a token.
func (f *flags) optionsFor(cluster *rest.Config, token, namespace, fallback, version string) (ui.Options, error) {
	config := withToken(cluster, token)
	options, err := f.optionsOf(config, version)
	if err != nil {
		return options, err
	}
	options.Namespace, options.Fallback = namespace, fallback
	if f.metricsURL == connect.None {
		return options, nil
	}
	pods, err := newPods(config, options.Control, cmp.Or(namespace, fallback))
	if err != nil {
		return options, err
	}
	pods.hints = sharedHints
	options.Metrics = pods.read
	return options, nil
}

// identify returns the user of a token, as the API server knows it.
func identify(ctx context.Context, cluster *rest.Config, token string) (string, error) {
	config := withToken(cluster, token)
	config.Timeout = identifyTimeout
	c, err := authenticationclient.NewForConfig(config)
	if err != nil {
		return "", err
	}
	review, err := c.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if review.Status.UserInfo.Username == user.Anonymous {
		return "", apierrors.NewUnauthorized("the API server ignores the token")
	}
	return review.Status.UserInfo.Username, nil
}

// certificate returns the certificate of the flags, or a self-signed one that is valid as long as the process can run.
func (f *flags) certificate(ctx context.Context, urls []*url.URL) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if f.certFile != "" {
		watcher, err := certwatcher.New(f.certFile, f.keyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the certificate of the page: %w; check --tls-cert-file and --tls-private-key-file", err)
		}
		go watcher.Start(ctx) // without it, the certificate of the start remains
		return watcher.GetCertificate, nil
	}
	template := x509.Certificate{Subject: pkix.Name{CommonName: "millwright-ui"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, of := range urls {
		if address := net.ParseIP(of.Hostname()); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, of.Hostname())
		}
	}
	pair, err := ca.New(template, time.Now())
	if err != nil {
		return nil, fmt.Errorf("cannot create a certificate: %w", err)
	}
	own := &tls.Certificate{Certificate: [][]byte{pair.Cert.Raw}, PrivateKey: pair.Key}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }, nil
}
