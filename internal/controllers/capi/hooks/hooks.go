// Package hooks answers Cluster API's runtime hooks for updates of machines in place: whether the VMs of a
// MachineSet, or of one machine, can become what a new template says, and how far the update of one is.
//
// Updates are made by the controller of MillwrightMachines, which reads all it needs from the object that
// Cluster API has changed. So the hooks change nothing, remember nothing, and any replica answers them. As
// Cluster API does not say who it is, nothing of a request is used but the names of objects that exist: what
// the driver is asked is read from the API server.
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
	// Log gets why something is replaced, which Cluster API does not say.
	Log logr.Logger
}

// Handler serves the hooks below Path.
type Handler struct {
	Options
	mux *http.ServeMux
	// hooks are the names of those that are served.
	hooks []string
	// asking bounds the requests for which drivers are called at a time.
	asking chan struct{}
}

const (
	// mostAsking is the number of requests for which drivers are called at a time.
	mostAsking = 4
	// timeoutSeconds is how long an answer may take: the longest that Cluster API allows, since a driver is
	// asked about each VM of a MachineSet.
	timeoutSeconds = 30
	// longestRequest is in bytes. A request has at most six objects, each of which fits into etcd.
	longestRequest = 8 << 20
)

// New makes a Handler.
func New(opts Options) *Handler {
	h := &Handler{
		Options: opts, mux: http.NewServeMux(), asking: make(chan struct{}, mostAsking),
	}
	h.mux.HandleFunc("POST "+Path+"discovery", func(w http.ResponseWriter, _ *http.Request) { write(w, h.discovered()) })
	serve(h, "CanUpdateMachineSet", h.canUpdateMachineSet)
	serve(h, "CanUpdateMachine", h.canUpdateMachine)
	serve(h, "UpdateMachine", h.updateMachine)
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// discovered says which hooks there are.
func (h *Handler) discovered() discovery {
	d := discovery{outcome: outcome{meta: meta{apiVersion, "DiscoveryResponse"}, Status: succeeded}}
	for _, hook := range h.hooks {
		d.Handlers = append(d.Handlers, handler{
			Name: strings.ToLower(hook), RequestHook: requestHook{apiVersion, hook}, TimeoutSeconds: timeoutSeconds, FailurePolicy: "Fail",
		})
	}
	return d
}

// errBusy is the error if drivers are being asked for as many requests as there may be.
var errBusy = errors.New("too many requests at a time; it is asked again")

// serve adds a hook. An error of answer fails the call, which Cluster API repeats.
func serve[Q, A any, P speaker[A]](h *Handler, hook string, answer func(context.Context, Q) (A, error)) {
	name := strings.ToLower(hook)
	h.hooks = append(h.hooks, hook)
	h.mux.HandleFunc("POST "+Path+name+"/"+name, func(w http.ResponseWriter, r *http.Request) {
		var request Q
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, longestRequest)).Decode(&request); err != nil {
			http.Error(w, text(fmt.Sprintf("reading the %s request: %v", hook, err)), http.StatusBadRequest)
			return
		}
		made, err := answer(r.Context(), request)
		if err != nil {
			write(w, outcome{meta{apiVersion, hook + "Response"}, failed, text(err.Error())})
			return
		}
		P(&made).clean()
		write(w, made)
	})
}

// longestText is the length of a message, in bytes.
const longestText = 4096

// text is what an answer or a log says, which drivers and users wrote some of.
func text(of string) string { return messages.Shorten(of, longestText) }

// speaker is an answer with a message.
type speaker[A any] interface {
	*A
	clean()
}

// clean keeps what controls a terminal out of the message.
func (o *outcome) clean() { o.Message = text(o.Message) }

func write(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // plain fields; who asked may be gone
}
