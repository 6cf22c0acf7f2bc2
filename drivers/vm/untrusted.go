package vm

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver/jsonlimit"
)

const (
	// maxObject limits a response, or an event of a watch, in bytes. The API server stores objects of up to 1.5 MiB. A
	// VirtualMachine has a few kilobytes, and so has a page of hosts for each of them.
	maxObject = 2 << 20
	// maxValues limits the values of a response or an event, because an empty value can take a hundred times as much
	// memory as its text. A VirtualMachine has a few hundred.
	maxValues = 1 << 15
	maxDepth  = 64
	// untrustedPage is the number of objects per response to a list.
	untrustedPage = 50
	// maxText limits an error that is not JSON, and maxHeaders the headers of a response, in bytes.
	maxText    = 16 << 10
	maxHeaders = 64 << 10
	// maxUnread limits what is received of a response before it is read, in bytes.
	maxUnread = 1 << 20
)

var errRedirected = errors.New("the API server sent a redirect, which is not allowed")

// untrustedTransport is a connection to an API server that the driver's operator did not choose. A response must not
// exhaust the memory, not even when it is decoded, and a redirect must not lead to a server that only the driver can
// reach.
type untrustedTransport struct{ inner http.RoundTripper }

// newUntrustedTransport returns the transport for a configuration, with its credentials.
func newUntrustedTransport(config *rest.Config) (http.RoundTripper, error) {
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	// client-go's own transport does not limit headers.
	inner := utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: secure, MaxResponseHeaderBytes: maxHeaders, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: maxUnread},
	})
	return rest.HTTPWrappersForConfig(config, untrustedTransport{inner})
}

// RoundTrip implements http.RoundTripper.
func (u untrustedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Accept", onlyJSON(request.Header.Get("Accept")))
	response, err := u.inner.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	account, _ := request.Context().Value(accountKey{}).(*account)
	if err := limit(response, request.URL.Query(), account); err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	return response, nil
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (u untrustedTransport) WrappedRoundTripper() http.RoundTripper { return u.inner }

// onlyJSON returns the JSON types of an Accept header. client-go requests metadata in another format.
func onlyJSON(accept string) string {
	var types []string
	for t := range strings.SplitSeq(accept, ",") {
		if strings.HasPrefix(strings.TrimSpace(t), runtime.ContentTypeJSON) {
			types = append(types, t)
		}
	}
	return strings.Join(types, ",")
}

// limit limits the body of a response to a request with the given query, and charges its size to the account of the
// call, which may be nil. It returns an error for a response that is not allowed at all.
func limit(response *http.Response, query url.Values, account *account) error {
	mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	failed := response.StatusCode >= http.StatusBadRequest
	switch {
	case response.StatusCode >= 300 && !failed:
		return errRedirected
	case mediaType != runtime.ContentTypeJSON && failed:
		// client-go must not decode it, because only JSON is limited.
		response.Header.Set("Content-Type", "text/plain")
		response.Body = body{io.LimitReader(response.Body, maxText), response.Body}
		return nil
	case mediaType != runtime.ContentTypeJSON:
		return fmt.Errorf("the API server sent a response of type %.80q instead of JSON", mediaType)
	}
	limits := jsonlimit.Limits{Bytes: maxObject, Values: maxValues, Depth: maxDepth}
	if query.Get("watch") == "true" && response.StatusCode == http.StatusOK {
		response.Body = body{charged{limits.Stream(response.Body), account}, response.Body}
		return nil
	}
	// Without a limit, the query is for one object, which has no large arrays.
	limits.Items, _ = strconv.Atoi(query.Get("limit"))
	response.Body = body{charged{limits.Document(response.Body), account}, response.Body}
	return nil
}

// charged charges what has been read to the account of a call, before it is decoded.
type charged struct {
	*jsonlimit.Reader
	account *account // nil if nothing is charged
}

// Read implements io.Reader.
func (c charged) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.account != nil {
		if refused := c.account.charge(c.Largest()); refused != nil {
			return 0, refused
		}
	}
	return n, err
}

// body is the limited body of a response.
type body struct {
	io.Reader
	io.Closer
}
