package instance

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// VolumesOptions configure Volumes.
type VolumesOptions struct {
	// Drivers are the drivers of all classes. Required.
	Drivers *registry.Registry
	// Class returns the MachineClass of a machine from a cache, or nil if it has none. Required.
	Class func(ctx context.Context, machine Key) (*v1alpha1.MachineClass, error)
	// Run and Wake are as in Options. Required.
	Run  func(task func(ctx context.Context)) bool
	Wake func(Key)
	// Clock defaults to the real one.
	Clock clock.WithDelayedExecution
}

// Volumes finds the IDs of persistent volumes at the providers of machines. It calls drivers in tasks and then
// wakes the caller. Create one with NewVolumes.
type Volumes struct {
	options VolumesOptions

	mu sync.Mutex
	// known are the results (type result) by query.
	known *lru.Cache
	// waiting are the machines that wait, by query.
	waiting map[query]sets.Set[Key]
}

// query identifies a volume at a provider. Drivers may have different IDs for a volume, or none.
type query struct {
	provider string
	volume   types.UID
}

// result is the result of a call.
type result struct {
	// id is empty if the driver does not know the volume.
	id string
	// failed is set after an error. The driver is then called again.
	failed bool
	// awaited is set if the driver is called again before the result is used, because it was unavailable or because
	// the error may be temporary. backoff is then for the next failure.
	awaited bool
	backoff wait.Backoff
	// used is set if the result of a failed call was used.
	used bool
	// failing is when the first of several failures in a row occurred; zero if the last call did not fail.
	failing time.Time
}

// retriedFor limits how long a call is retried after errors that may be temporary, other than Unavailable. Drivers
// return the same codes for errors that last, and the drain must not wait for those.
const retriedFor = 2 * time.Minute

// maxKnown is the maximum number of remembered results, far more than concurrent drains need. For the least
// recently used volumes, the driver is called again.
const maxKnown = 4096

// NewVolumes creates Volumes.
func NewVolumes(options VolumesOptions) *Volumes {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Volumes{options: options, known: lru.New(maxKnown), waiting: map[query]sets.Set[Key]{}}
}

// Identify returns the ID of a volume at the provider of a machine, for its drain. The ID is empty if the
// driver of the machine's class does not know the volume, or after an error. After an error, the next call
// queries the driver again. The result is pending until the driver has responded, and while it is unavailable
// or not registered, because the same provider detaches the volumes. It is also pending while the call is retried
// after other errors that may be temporary, for retriedFor at most. The machine is then woken, except after a
// registration, which is a separate event. Identify returns an error if the class could not be read.
func (v *Volumes) Identify(ctx context.Context, machine Key, pv *corev1.PersistentVolume) (id string, pending bool, err error) {
	class, err := v.options.Class(ctx, machine)
	if err != nil {
		return "", false, err
	}
	provider := ""
	if class != nil {
		provider = class.Provider
	}
	name, d := v.options.Drivers.Serving(provider)
	if d == nil {
		return "", class != nil, nil // without a class, there is no driver to wait for
	}
	identifier, able := driver.As[driver.VolumeIdentifier](d)
	if !able {
		return "", false, nil
	}
	id, pending = v.look(machine, query{name, pv.UID}, identifier, pv)
	return id, pending, nil
}

// look returns a known result, or starts a call of the driver.
func (v *Volumes) look(machine Key, about query, identifier driver.VolumeIdentifier, pv *corev1.PersistentVolume) (id string, pending bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if waiting, under := v.waiting[about]; under {
		waiting.Insert(machine)
		return "", true
	}
	remembered, _ := v.known.Get(about)
	last, known := remembered.(result)
	if known && !last.awaited && !last.used {
		if last.failed {
			last.used = true
			v.known.Add(about, last)
		}
		return last.id, false
	}
	if !last.awaited {
		last.backoff = timeouts.Policy{}.Backoff(MethodStatus, codes.Unavailable) // like a status call, it changes nothing
	}
	v.waiting[about] = sets.New(machine)
	spec := pv.Spec.DeepCopy()
	if !v.options.Run(func(ctx context.Context) { v.ask(ctx, about, identifier, spec, last) }) {
		delete(v.waiting, about)
	}
	return "", true
}

func (v *Volumes) ask(ctx context.Context, about query, identifier driver.VolumeIdentifier, spec *corev1.PersistentVolumeSpec, last result) {
	var news result
	response, err := identifier.GetVolumeIDs(ctx, &driver.GetVolumeIDsRequest{PVSpecs: []*corev1.PersistentVolumeSpec{spec}})
	now := v.options.Clock.Now()
	if last.failing.IsZero() {
		last.failing = now
	}
	switch {
	case status.Is(err, codes.Unimplemented): // by the driver behind a decorator
	case status.Is(err, codes.Unavailable), temporary(err) && now.Before(last.failing.Add(retriedFor)):
		delay := last.backoff.Step()
		v.note(about, result{awaited: true, backoff: last.backoff, failing: last.failing})
		v.wakeLater(about, delay)
		return
	case err != nil:
		news.failed, news.failing = true, last.failing
	case response != nil && len(response.VolumeIDs) > 0:
		news.id = response.VolumeIDs[0]
	}
	v.note(about, news)
	v.wake(about)
}

// temporary reports whether an error may be temporary according to the contract of drivers.
func temporary(err error) bool {
	if err == nil {
		return false
	}
	switch codeOf(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return true
	}
	return false
}

// wakeLater wakes the machines when the driver has registered again, but no later than after a delay.
func (v *Volumes) wakeLater(about query, delay time.Duration) {
	once := sync.OnceFunc(func() { v.wake(about) })
	stop := v.options.Drivers.OnRegister(func(name string) {
		if strings.EqualFold(name, about.provider) {
			once()
		}
	})
	v.options.Clock.AfterFunc(delay, func() {
		stop()
		once()
	})
}

func (v *Volumes) note(about query, news result) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known.Add(about, news)
}

// wake wakes the machines that wait for a query.
func (v *Volumes) wake(about query) {
	v.mu.Lock()
	waiting := v.waiting[about]
	delete(v.waiting, about)
	v.mu.Unlock()
	for machine := range waiting {
		v.options.Wake(machine)
	}
}
