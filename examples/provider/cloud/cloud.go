// Package cloud is a cloud that only stores the descriptions of its VMs: an HTTP server and a client for it.
package cloud

import (
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// VM is a virtual machine.
type VM struct {
	// ID is assigned by the cloud and never reused.
	ID string `json:"id"`
	// Name is chosen by the creator of the VM and is unique.
	Name string `json:"name"`
	// Size is small or large.
	Size string `json:"size"`
	// Tags are for the users of the cloud.
	Tags map[string]string `json:"tags"`
	// UserData is for the guest. The cloud never returns it.
	UserData []byte `json:"userData,omitempty"`
}

// Cloud is the server. Create one with New.
type Cloud struct {
	mux      *http.ServeMux
	token    string
	capacity int

	mu  sync.Mutex
	vms map[string]VM // by ID
}

// New returns a cloud without VMs for clients that have the token. Capacity is the maximum number of VMs.
func New(token string, capacity int) *Cloud {
	c := &Cloud{mux: http.NewServeMux(), token: token, capacity: capacity, vms: map[string]VM{}}
	c.mux.HandleFunc("POST /vms", c.create)
	c.mux.HandleFunc("GET /vms", c.list)
	c.mux.HandleFunc("GET /vms/{id}", c.get)
	c.mux.HandleFunc("DELETE /vms/{id}", c.remove)
	return c
}

// ServeHTTP implements http.Handler.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+c.token {
		http.Error(w, "the token is invalid", http.StatusUnauthorized)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mux.ServeHTTP(w, r)
}

// create responds with 409 if a VM of that name exists.
func (c *Cloud) create(w http.ResponseWriter, r *http.Request) {
	var vm VM
	switch err := json.NewDecoder(r.Body).Decode(&vm); {
	case err != nil || vm.Name == "":
		http.Error(w, "the VM is not valid JSON, or has no name", http.StatusBadRequest)
	case vm.Size != "small" && vm.Size != "large":
		http.Error(w, "size must be small or large", http.StatusBadRequest)
	case slices.ContainsFunc(slices.Collect(maps.Values(c.vms)), func(other VM) bool { return other.Name == vm.Name }):
		http.Error(w, "a VM of that name already exists", http.StatusConflict)
	case len(c.vms) >= c.capacity:
		http.Error(w, "the cloud has no capacity for another VM", http.StatusInsufficientStorage)
	default:
		vm.ID, vm.UserData = strings.ToLower(rand.Text()), nil
		c.vms[vm.ID] = vm
		respond(w, vm)
	}
}

// list returns the VMs that have all tags of the query: ?tag=key=value.
func (c *Cloud) list(w http.ResponseWriter, r *http.Request) {
	found := []VM{}
	for _, vm := range c.vms {
		if !slices.ContainsFunc(r.URL.Query()["tag"], func(tag string) bool {
			key, value, _ := strings.Cut(tag, "=")
			got, ok := vm.Tags[key]
			return !ok || got != value
		}) {
			found = append(found, vm)
		}
	}
	respond(w, found)
}

func (c *Cloud) get(w http.ResponseWriter, r *http.Request) {
	vm, ok := c.vms[r.PathValue("id")]
	if !ok {
		http.Error(w, "no VM has this ID", http.StatusNotFound)
		return
	}
	respond(w, vm)
}

func (c *Cloud) remove(w http.ResponseWriter, r *http.Request) {
	if _, ok := c.vms[r.PathValue("id")]; !ok {
		http.Error(w, "no VM has this ID", http.StatusNotFound)
		return
	}
	delete(c.vms, r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}

func respond(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // an error means that the client has disconnected
}
