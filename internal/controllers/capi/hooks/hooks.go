// Package hooks implements Cluster API's runtime hooks for in-place updates of machines. The hooks report whether the
// VMs of a MachineSet, or of one machine, can be updated to match a new template, and the progress of an update.
//
// The controller of MillwrightMachines makes the updates. It reads everything that it needs from the object that
// Cluster API has changed. The hooks therefore write nothing and store nothing, and any replica can serve them.
// Cluster API does not authenticate itself, so the hooks use nothing of a request except for the names of existing
// objects: the inputs of the driver are read from the API server.
package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Path is the prefix of all paths.
const Path = "/" + apiVersion + "/"

// Options configure a Handler. All fields are required.
type Options struct {
	// Client reads from a cache with Cluster API's kinds.
	Client client.Reader
	// Live reads Secrets from the API server.
	Live    client.Reader
	Drivers *registry.Registry
	// Log receives the reasons why machines are replaced, which Cluster API does not log.
	Log logr.Logger
}

// Handler serves the hooks below Path.
type Handler struct {
	Options
	mux *http.ServeMux
	// hooks are the names of the registered hooks.
	hooks []string
	// slots limits the concurrent requests for which drivers are called.
	slots chan struct{}
}

const (
	// maxConcurrent is the number of concurrent requests for which drivers are called.
	maxConcurrent = 4
	// timeoutSeconds is how long a response may take. It is the maximum that Cluster API allows, because the driver
	// is called for each VM of a MachineSet.
	timeoutSeconds = 30
	// maxRequest limits the size of a request, in bytes. A request has at most six objects, usually of a few
	// kilobytes. The server of the webhooks also limits what a request takes when it is decoded.
	maxRequest = 4 << 20
)

// New returns a Handler.
func New(opts Options) *Handler {
	h := &Handler{
		Options: opts, mux: http.NewServeMux(), slots: make(chan struct{}, maxConcurrent),
	}
	h.mux.HandleFunc("POST "+Path+"discovery", func(w http.ResponseWriter, _ *http.Request) { write(w, h.discovered()) })
	serve(h, "CanUpdateMachineSet", h.canUpdateMachineSet)
	serve(h, "CanUpdateMachine", h.canUpdateMachine)
	serve(h, "UpdateMachine", h.updateMachine)
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// discovered returns the response to the discovery hook, which lists the hooks.
func (h *Handler) discovered() discovery {
	d := discovery{outcome: outcome{meta: meta{apiVersion, "DiscoveryResponse"}, Status: succeeded}}
	for _, hook := range h.hooks {
		d.Handlers = append(d.Handlers, handler{
			Name: strings.ToLower(hook), RequestHook: requestHook{apiVersion, hook}, TimeoutSeconds: timeoutSeconds, FailurePolicy: "Fail",
		})
	}
	return d
}

// errBusy means that drivers are already being called for the maximum number of requests.
var errBusy = errors.New("too many concurrent requests; Cluster API retries this request")

// serve registers a hook. An error of handle fails the call, which Cluster API retries.
func serve[Q, A any, P sanitizer[A]](h *Handler, hook string, handle func(context.Context, Q) (A, error)) {
	name := strings.ToLower(hook)
	h.hooks = append(h.hooks, hook)
	h.mux.HandleFunc("POST "+Path+name+"/"+name, func(w http.ResponseWriter, r *http.Request) {
		var request Q
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&request); err != nil {
			http.Error(w, sanitized(fmt.Sprintf("reading the %s request: %v", hook, err)), http.StatusBadRequest)
			return
		}
		response, err := handle(r.Context(), request)
		if err != nil {
			write(w, outcome{meta{apiVersion, hook + "Response"}, failed, sanitized(err.Error())})
			return
		}
		P(&response).sanitize()
		write(w, response)
	})
}

// maxText limits the length of a message, in bytes.
const maxText = 4096

// sanitized shortens a message and replaces unprintable characters, because drivers and users may have written parts
// of it.
func sanitized(message string) string { return messages.Shorten(message, maxText) }

// sanitizer is a response with a message.
type sanitizer[A any] interface {
	*A
	sanitize()
}

// sanitize sanitizes the message.
func (o *outcome) sanitize() { o.Message = sanitized(o.Message) }

func write(w http.ResponseWriter, response any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(response) // an error means that the client is gone
}
