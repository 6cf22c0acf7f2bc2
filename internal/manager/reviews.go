package manager

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/millwright-dev/millwright/driver/jsonlimit"
	"github.com/millwright-dev/millwright/internal/connlimit"
)

// limitDecoding passes requests whose bodies take limited memory when they are decoded, alone and together with all
// concurrent ones. Handlers decode a request before they know whether it makes sense. Other requests get the response
// 400, 413 or 429.
func limitDecoding(next http.Handler) http.Handler {
	limits := jsonlimit.Limits{Bytes: longestReview, Values: maxReviewValues, Depth: maxReviewDepth}
	decoded := connlimit.NewCounter(maxDecoded, maxDecodedPerAddress)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reader := limits.Document(r.Body)
		body, err := io.ReadAll(reader)
		if err != nil {
			http.Error(w, err.Error(), statusOf(err))
			return
		}
		release, ok := decoded.TakeSome(connlimit.OriginOfRequest(r), len(body)+valueSize*reader.Values())
		if !ok {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many concurrent requests", http.StatusTooManyRequests)
			return
		}
		defer release()
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// statusOf returns the status for a body that cannot be read.
func statusOf(err error) int {
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}
