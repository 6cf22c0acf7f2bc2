// Package kube is a small client of the API server: JSON over HTTP/1.1. client-go would make the guest's
// program several times as large.
package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// requestTimeout is the time limit of a request, so that a connection that a migration of the VM broke is
// noticed before the Node's lease expires.
const requestTimeout = 8 * time.Second

// Access configures a client.
type Access struct {
	// Server is its URL.
	Server string
	// Authority is the server's certificate authorities in PEM form. If empty, the server is not verified.
	Authority []byte
	// Token is the bearer token. It is optional.
	Token string
	// Certificate of the client. It is optional.
	Certificate tls.Certificate
}

// Client is a client of one API server. It is safe for concurrent use.
type Client struct {
	access Access
	http   *http.Client
}

// New returns a client, which connects at the first request. It returns an error if Authority
// has no certificate.
func New(access Access) (*Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(access.Authority) == 0 {
		config.InsecureSkipVerify = true
	} else {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(access.Authority) {
			return nil, errors.New("the certificate authority holds no certificate in PEM form")
		}
	}
	if len(access.Certificate.Certificate) > 0 {
		config.Certificates = []tls.Certificate{access.Certificate}
	}
	transport := &http.Transport{
		TLSClientConfig:     config,
		DialContext:         (&net.Dialer{Timeout: requestTimeout}).DialContext,
		TLSHandshakeTimeout: requestTimeout,
		IdleConnTimeout:     time.Minute,
	}
	return &Client{access: access, http: &http.Client{Transport: transport}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is a response that is not a success.
type StatusError struct {
	// Code is the HTTP status.
	Code int
	// Message of the server. It is optional.
	Message string
}

func (e *StatusError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the API server returned %d %s", e.Code, http.StatusText(e.Code))
	}
	return fmt.Sprintf("the API server returned %d: %s", e.Code, e.Message)
}

// IsStatus reports whether an error is a response with this HTTP status.
func IsStatus(err error, code int) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == code
}

// Content types of patches.
const (
	// MergePatch replaces whole lists.
	MergePatch = "application/merge-patch+json"
	// StrategicPatch merges lists by their keys.
	StrategicPatch = "application/strategic-merge-patch+json"
)

// Get reads an object.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.do(ctx, call{method: http.MethodGet, path: path, out: out})
}

// Post creates an object, and decodes the created one into out unless that is nil.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	return c.do(ctx, call{method: http.MethodPost, path: path, in: in, out: out, contentType: "application/json"})
}

// Put replaces an object, and decodes the new one into out unless that is nil.
func (c *Client) Put(ctx context.Context, path string, in, out any) error {
	return c.do(ctx, call{method: http.MethodPut, path: path, in: in, out: out, contentType: "application/json"})
}

// Patch patches an object.
func (c *Client) Patch(ctx context.Context, path, contentType string, in any) error {
	return c.do(ctx, call{method: http.MethodPatch, path: path, in: in, contentType: contentType})
}

// Delete deletes an object with DeleteOptions.
func (c *Client) Delete(ctx context.Context, path string, options any) error {
	return c.do(ctx, call{method: http.MethodDelete, path: path, in: options, contentType: "application/json"})
}

// call is one request.
type call struct {
	method, path, contentType string
	in, out                   any
}

func (c *Client) do(ctx context.Context, r call) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer drain(response.Body)
	if r.out == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(r.out); err != nil {
		return fmt.Errorf("reading the response to %s %s: %w", r.method, r.path, err)
	}
	return nil
}

// send returns the response if it is a success. The caller closes its body.
func (c *Client) send(ctx context.Context, r call) (*http.Response, error) {
	var body io.Reader
	if r.in != nil {
		text, err := json.Marshal(r.in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, r.method, c.access.Server+r.path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "millwright-guest")
	if r.contentType != "" {
		request.Header.Set("Content-Type", r.contentType)
	}
	if c.access.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.access.Token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		defer drain(response.Body)
		return nil, statusError(response)
	}
	return response, nil
}

func statusError(response *http.Response) error {
	var status struct {
		Message string `json:"message"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&status); err != nil {
		status.Message = "" // not from the API server
	}
	return &StatusError{Code: response.StatusCode, Message: status.Message}
}

// drain allows the connection to be reused.
func drain(body io.ReadCloser) {
	_, _ = io.Copy(io.Discard, io.LimitReader(body, 64<<10))
	_ = body.Close()
}

// Watch calls see with each state of the objects that a path selects, existing ones first, until see returns
// stop or an error, the stream is closed, or ctx is done. The end of the stream is an error, io.EOF if the server
// closed it. Deleted objects are skipped.
func (c *Client) Watch(ctx context.Context, path string, see func(object json.RawMessage) (stop bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx) // which also closes the stream
	defer cancel()
	response, err := c.send(ctx, call{method: http.MethodGet, path: path})
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	events := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("watching %s: %w", path, err)
		}
		switch event.Type {
		case "ERROR":
			return fmt.Errorf("watching %s: the API server closed the watch", path)
		case "DELETED":
			continue
		}
		if stop, err := see(event.Object); stop || err != nil {
			return err
		}
	}
}
