package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/driver/jsonlimit"
)

// Limits of the responses of a target. A page of a list has at most 500 objects.
const (
	// maxResponse limits a response that is not a watch, in bytes.
	maxResponse = 64 << 20
	// maxEvent limits an event of a watch in JSON, in bytes. client-go has the same limit for those in protobuf.
	maxEvent = 16 << 20
	// maxValues limits the values of a response or an event in JSON, and maxDepth their depth. An object with many
	// containers has a few thousand values.
	maxValues = 4 << 20
	maxDepth  = 256
	// responseTimeout limits a request that is not a watch. API servers abort requests after 60 seconds.
	responseTimeout = 90 * time.Second
)

var (
	errRedirected = errors.New("the API server of the target cluster sent a redirect, which is not allowed")
	errTooLong    = fmt.Errorf("the API server of the target cluster sent a response of more than %d MiB", maxResponse>>20)
)

// untrusted limits what the API server of a target can do to the process, which also serves other clusters. A request that
// no one cancels, such as for discovery, must not prevent the manager from stopping. A redirect must not lead to servers that
// only the fleet can reach.
func untrusted(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		watches := request.URL.Query().Has("watch")
		ctx, cancel := request.Context(), func() {}
		if !watches {
			ctx, cancel = context.WithTimeout(ctx, responseTimeout)
		}
		response, err := next.RoundTrip(request.WithContext(ctx))
		if err != nil {
			cancel()
			return nil, err
		}
		limited, err := limit(response, watches)
		if err != nil {
			_ = response.Body.Close()
			cancel()
			return nil, err
		}
		response.Body = &body{limited, response.Body, cancel}
		return response, nil
	})
}

// limit returns the limited body of a response, or an error if the response is not allowed at all.
func limit(response *http.Response, watches bool) (io.Reader, error) {
	mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	failed := response.StatusCode >= http.StatusBadRequest
	whole := &limitedReader{from: response.Body, left: maxResponse}
	limits := jsonlimit.Limits{Bytes: maxResponse, Values: maxValues, Depth: maxDepth}
	switch {
	case response.StatusCode >= http.StatusMultipleChoices && !failed:
		return nil, errRedirected
	case mediaType == runtime.ContentTypeJSON && watches && !failed:
		limits.Bytes = maxEvent
		return limits.Stream(response.Body), nil
	case mediaType == runtime.ContentTypeJSON:
		return limits.Document(response.Body), nil
	case mediaType == runtime.ContentTypeProtobuf && watches && !failed:
		return response.Body, nil // client-go limits each event
	case mediaType == runtime.ContentTypeProtobuf, mediaType == "text/plain":
		return whole, nil
	case failed:
		// client-go must not decode it, because not all formats are limited.
		response.Header.Set("Content-Type", "text/plain")
		return whole, nil
	default:
		return nil, fmt.Errorf("the API server of the target cluster sent a response of type %.80q, which is not allowed", mediaType)
	}
}

// limitedReader returns an error after a number of bytes.
type limitedReader struct {
	from io.Reader
	left int
}

// Read implements io.Reader.
func (l *limitedReader) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	if l.left -= n; l.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// body is the limited body of a response.
type body struct {
	io.Reader
	io.Closer
	// done releases the context of the request.
	done context.CancelFunc
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.done()
	return b.Closer.Close()
}
