// Package relist makes informers list all objects again after an outage of the API server, so that they notice a restore from an
// older backup.
//
// The resource versions of a restored cluster continue from the last version in the backup. client-go resumes a watch from the
// last version that it received. The API server accepts a version that it has not reached yet, and sends no events until it reaches
// it. The informer would miss all changes before that version, and keep objects that no longer exist.
//
// An API server must be stopped while its etcd is restored, so clients fail to connect to it. client-go would retry a watch
// that cannot connect. With Config, the watch expires instead, and the informer lists all objects. It first requests at least the
// version that it has. An API server rejects a version that it has not reached, and the informer then requests the latest
// version with a consistent list.
//
// Each outage costs one list for each informer. Except after a restore, API servers serve it from memory. The back-off of
// client-go spreads the lists of many informers over up to a minute.
package relist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Config returns a copy of a configuration whose informers list again after an outage of the API server. If config is nil, it
// returns nil.
func Config(config *rest.Config) *rest.Config {
	if config == nil {
		return nil
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{next} })
	return config
}

// transport responds in place of the API server, with an expired watch, if a request that resumes a watch fails.
type transport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err == nil || request.Context().Err() != nil || !resumes(request) {
		return response, err
	}
	return expired(request, err)
}

// resumes reports whether a request resumes a watch. A watch that begins with all objects does not: it works like a list.
func resumes(request *http.Request) bool {
	query := request.URL.Query()
	version := query.Get("resourceVersion")
	return query.Get("watch") == "true" && version != "" && version != "0" && !query.Has("sendInitialEvents")
}

// expired returns the response of an API server that does not have the version of a watch any longer.
func expired(request *http.Request, cause error) (*http.Response, error) {
	status := apierrors.NewResourceExpired(fmt.Sprintf("the API server did not respond, and may have been restored from a backup: %v", cause)).Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	body, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusGone, Status: http.StatusText(http.StatusGone), Request: request,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		Body:   io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}
