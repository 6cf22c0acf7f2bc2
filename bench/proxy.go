package main

import (
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// proxy forwards requests to an API server.
type proxy struct {
	url, token string
	ca         []byte
	server     *http.Server
}

// serveProxy serves a proxy until stop is called. access describes the API server. around returns the handler of authenticated
// requests, which calls next to forward a request.
func serveProxy(access *rest.Config, around func(next http.Handler) http.Handler) (*proxy, error) {
	transport, err := rest.TransportFor(access)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(access.Host)
	if err != nil {
		return nil, err
	}
	authority, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot create the certificate of the proxy: %w", err)
	}
	pair, err := tls.X509KeyPair(authority, key)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{url: "https://" + listener.Addr().String(), token: rand.Text(), ca: authority}
	discard := stdlog.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			r.Out.Header.Del("Authorization")
		},
		Transport: transport, FlushInterval: -1, ErrorLog: discard,
	}
	p.server = &http.Server{
		Handler: p.authenticated(around(forward)), ErrorLog: discard, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13},
	}
	go func() { _ = p.server.ServeTLS(listener, "", "") }() // until stop is called
	return p, nil
}

// authenticated rejects requests without the token.
func (p *proxy) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+p.token)) != 1 {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// stop closes all connections.
func (p *proxy) stop() error { return p.server.Close() }

// kubeconfig returns a kubeconfig for a path of the proxy, such as "/cluster".
func (p *proxy) kubeconfig(name, path string) ([]byte, error) {
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: p.url + path, CertificateAuthorityData: p.ca}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: p.token}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	return clientcmd.Write(*file)
}
