// Package cloud is a cloud that only remembers its VMs: an HTTP server, and a client of it.
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
	// ID is given by the cloud, and never used again.
	ID string `json:"id"`
	// Name is chosen by who creates the VM, and unique.
	Name string `json:"name"`
	// Size is small or large.
	Size string `json:"size"`
	// Tags are for those who use the cloud.
	Tags map[string]string `json:"tags"`
	// UserData is for the guest. It is never shown again.
	UserData []byte `json:"userData,omitempty"`
}

// Cloud is the server. Make one with New.
type Cloud struct {
	mux      *http.ServeMux
	token    string
	capacity int

	mu  sync.Mutex
	vms map[string]VM // by ID
}

// New returns a cloud without VMs, for clients that have the token, with room for so many VMs.
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
		http.Error(w, "the token is not valid", http.StatusUnauthorized)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mux.ServeHTTP(w, r)
}

// create answers 409 if there is a VM of that name.
func (c *Cloud) create(w http.ResponseWriter, r *http.Request) {
	var vm VM
	switch err := json.NewDecoder(r.Body).Decode(&vm); {
	case err != nil || vm.Name == "":
		http.Error(w, "the VM cannot be read, or has no name", http.StatusBadRequest)
	case vm.Size != "small" && vm.Size != "large":
		http.Error(w, "size is neither small nor large", http.StatusBadRequest)
	case slices.ContainsFunc(slices.Collect(maps.Values(c.vms)), func(other VM) bool { return other.Name == vm.Name }):
		http.Error(w, "there is a VM of that name", http.StatusConflict)
	case len(c.vms) >= c.capacity:
		http.Error(w, "there is no room for another VM", http.StatusInsufficientStorage)
	default:
		vm.ID, vm.UserData = strings.ToLower(rand.Text()), nil
		c.vms[vm.ID] = vm
		answer(w, vm)
	}
}

// list answers the VMs that have all tags of the query: ?tag=key=value.
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
	answer(w, found)
}

func (c *Cloud) get(w http.ResponseWriter, r *http.Request) {
	vm, ok := c.vms[r.PathValue("id")]
	if !ok {
		http.Error(w, "there is no VM of that ID", http.StatusNotFound)
		return
	}
	answer(w, vm)
}

func (c *Cloud) remove(w http.ResponseWriter, r *http.Request) {
	if _, ok := c.vms[r.PathValue("id")]; !ok {
		http.Error(w, "there is no VM of that ID", http.StatusNotFound)
		return
	}
	delete(c.vms, r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client has gone
}
