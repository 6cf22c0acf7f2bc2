// Package registry selects one of several drivers by the provider of a MachineClass.
//
// A [Registry] is itself a driver: it passes each request to the driver that is registered under the provider of
// the request's class. Drivers may be registered and removed while it is in use, for example those of other
// processes. A request for a provider without a driver fails with Unavailable, so that no VM is considered gone.
//
// A [Kind] is a kind of driver that a program contains: its name, its flags, and a function that opens it.
package registry

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// AnyProvider is the name of a driver that serves the classes of all providers without a driver of their own, as a
// driver of MCM does.
const AnyProvider = ""

// ErrTaken is the error for a name under which another driver is registered.
var ErrTaken = errors.New("another driver has this name")

// Options configure a Registry. The zero value is valid.
type Options struct {
	// Decorate wraps each driver when it is registered, for example with package instrument. If nil, drivers are
	// not wrapped.
	Decorate func(name string, d driver.Driver) driver.Driver
	// Default is the name of the driver for classes without a provider. If empty, such classes are rejected, unless
	// a driver serves [AnyProvider].
	Default string
	// MayGrow states that further drivers may register, such as those of other processes. If no driver implements
	// an operation, the error is then Unavailable instead of Unimplemented, and no request goes to a driver only
	// because it is the only one so far.
	MayGrow bool
}

// Registry is a set of drivers by name. Names are case-insensitive. Its methods may be called concurrently. Create
// one with New. Methods that only read are valid for a nil Registry, which serves all providers and has no driver.
type Registry struct {
	options Options

	mu        sync.RWMutex
	drivers   map[string]*entry // by lower-case name
	listeners map[*listener]struct{}
}

type entry struct {
	name   string
	driver driver.Driver
}

type listener struct{ registered func(name string) }

// New returns a Registry without drivers.
func New(options Options) *Registry {
	return &Registry{options: options, drivers: map[string]*entry{}, listeners: map[*listener]struct{}{}}
}

// Only returns a Registry with one driver, which is its default. It panics if Register returns an error.
func Only(name string, d driver.Driver) *Registry {
	r := New(Options{Default: name})
	if _, err := r.Register(name, d); err != nil {
		panic(err)
	}
	return r
}

// Register adds a driver for the classes with that provider. [AnyProvider] is also valid. If a driver of that name
// is registered, it stays, and the error is ErrTaken. remove removes the driver; calls in progress continue. remove
// may be called several times.
func (r *Registry) Register(name string, d driver.Driver) (remove func(), err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if d == nil {
		return nil, fmt.Errorf("driver %q is nil", name)
	}
	if r.options.Decorate != nil {
		d = r.options.Decorate(name, d)
	}
	added, key := &entry{name: name, driver: d}, strings.ToLower(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.drivers[key]; taken {
		return nil, fmt.Errorf("driver %q: %w", name, ErrTaken)
	}
	r.drivers[key] = added
	r.notify(name)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.drivers[key] == added {
			delete(r.drivers, key)
		}
	}, nil
}

// CheckName returns an error for an invalid name of a driver. Valid names are AnyProvider, and names of 1 to 63
// letters, digits, "-", "_" and "." that start and end with a letter or a digit.
func CheckName(text string) error {
	if text == AnyProvider || validName.MatchString(text) {
		return nil
	}
	return fmt.Errorf("invalid driver name %q; use 1 to 63 letters, digits, '-', '_' and '.', and start and end with a letter or digit", text)
}

var validName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// Announce notifies listeners that a registered driver is available again after it was Unavailable.
func (r *Registry) Announce(name string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if _, registered := r.drivers[strings.ToLower(name)]; registered {
		r.notify(name)
	}
}

// notify calls all listeners. The caller holds the lock.
func (r *Registry) notify(name string) {
	for l := range r.listeners {
		go l.registered(name)
	}
}

// OnRegister calls a function, in a separate goroutine, for each driver that is registered or announced from now
// on, until stop is called.
func (r *Registry) OnRegister(registered func(name string)) (stop func()) {
	if r == nil {
		return func() {}
	}
	added := &listener{registered: registered}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners[added] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.listeners, added)
	}
}

// Names returns the sorted names of the drivers, without AnyProvider.
func (r *Registry) Names() []string {
	var names []string
	for _, e := range r.entries() {
		if e.name != AnyProvider {
			names = append(names, e.name)
		}
	}
	return names
}

// Has reports whether a driver has exactly that name.
func (r *Registry) Has(name string) bool { return slices.Contains(r.Names(), name) }

// String lists the drivers for messages, for example: `the driver "vm"`.
func (r *Registry) String() string {
	var names []string
	for _, name := range r.Names() {
		names = append(names, strconv.Quote(name))
	}
	return quoted(names)
}

func quoted(names []string) string {
	switch last := len(names) - 1; last {
	case -1:
		return "no driver"
	case 0:
		return "the driver " + names[0]
	default:
		return "the drivers " + strings.Join(names[:last], ", ") + " and " + names[last]
	}
}

// entries returns the registered drivers, sorted by name.
func (r *Registry) entries() []*entry {
	if r == nil {
		return nil
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]*entry, 0, len(r.drivers))
	for _, e := range r.drivers {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int { return strings.Compare(a.name, b.name) })
	return all
}

// Serves reports whether the driver of that name, if registered, serves a class. It does if the class names it or
// has no provider.
func Serves(name string, class *v1alpha1.MachineClass) bool {
	return name == AnyProvider || class.Provider == "" || strings.EqualFold(class.Provider, name)
}

// Refusal returns the reason why no driver serves a class, or an empty string if one does. It is a sentence without
// a period.
func (r *Registry) Refusal(class *v1alpha1.MachineClass) string {
	if r == nil || r.find(class.Provider) != nil {
		return ""
	}
	if class.Provider == "" {
		return fmt.Sprintf("MachineClass %q has no provider, and this manager has %s", class.Name, r)
	}
	return fmt.Sprintf("MachineClass %q is for driver %q, but this manager has %s", class.Name, class.Provider, r)
}

// Serving returns the driver for the classes of a provider and the name under which it is registered, or nil if
// there is none. The provider is empty for classes without a provider.
func (r *Registry) Serving(provider string) (name string, d driver.Driver) {
	e := r.find(provider)
	if e == nil {
		return "", nil
	}
	return e.name, e.driver
}

// find returns the driver for a provider, or nil if there is none.
func (r *Registry) find(provider string) *entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e, ok := r.drivers[strings.ToLower(provider)]; ok {
		return e
	}
	if e, ok := r.drivers[AnyProvider]; ok {
		return e
	}
	if provider != "" || r.options.Default == "" {
		return nil
	}
	if e, ok := r.drivers[strings.ToLower(r.options.Default)]; ok {
		return e
	}
	return nil
}

// For returns the driver of a class. The error has the code Unavailable, because a driver may register later.
func (r *Registry) For(class *v1alpha1.MachineClass) (driver.Driver, error) {
	if e := r.find(class.Provider); e != nil {
		return e.driver, nil
	}
	return nil, status.Error(codes.Unavailable, r.Refusal(class))
}
