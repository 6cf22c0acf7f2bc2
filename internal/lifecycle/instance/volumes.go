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
	// Drivers of all classes. Required.
	Drivers *registry.Registry
	// Class returns the MachineClass of a machine, from a cache; nil if it has none. Required.
	Class func(ctx context.Context, machine Key) (*v1alpha1.MachineClass, error)
	// Run and Wake are those of Options. Required.
	Run  func(task func(ctx context.Context)) bool
	Wake func(Key)
	// Clock defaults to the real one.
	Clock clock.WithDelayedExecution
}

// Volumes identifies persistent volumes at the providers of machines. It asks drivers in tasks, and
// wakes the caller. Make one with NewVolumes.
type Volumes struct {
	options VolumesOptions

	mu sync.Mutex
	// known are the answers (type answer) by their question.
	known *lru.Cache
	// asking are the machines that wait, by question.
	asking map[question]sets.Set[Key]
}

// question is what is asked for. Drivers have different IDs for a volume, or none.
type question struct {
	provider string
	volume   types.UID
}

// answer is the result of a call.
type answer struct {
	// id is empty if the driver does not know the volume.
	id string
	// failed is set after an error; the driver is then called again.
	failed bool
	// awaited is set if the driver was not available. backoff is then for the next failure.
	awaited bool
	backoff wait.Backoff
}

// maxKnown is the maximum number of remembered answers, far more than concurrent drains need. The driver is
// called again for the least recently used volumes.
const maxKnown = 4096

// NewVolumes returns Volumes.
func NewVolumes(options VolumesOptions) *Volumes {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Volumes{options: options, known: lru.New(maxKnown), asking: map[question]sets.Set[Key]{}}
}

// Identify returns the ID of a volume at the provider of a machine, for its drain: empty if the driver of
// the machine's class does not know it, or after an error, and then the driver is asked again. It is
// pending until the driver has responded, and while it is Unavailable or not registered: the volumes are
// detached by the same provider. The machine will be woken, except after a registration, which is an
// event of its own. An error means that the class could not be read.
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
		return "", class != nil, nil // without a class there is no driver to wait for
	}
	identifier, able := driver.As[driver.VolumeIdentifier](d)
	if !able {
		return "", false, nil
	}
	id, pending = v.look(machine, question{name, pv.UID}, identifier, pv)
	return id, pending, nil
}

// look returns what is known, or has the driver asked.
func (v *Volumes) look(machine Key, about question, identifier driver.VolumeIdentifier, pv *corev1.PersistentVolume) (id string, pending bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if waiting, under := v.asking[about]; under {
		waiting.Insert(machine)
		return "", true
	}
	remembered, _ := v.known.Get(about)
	last, known := remembered.(answer)
	if last.failed {
		v.known.Remove(about)
	}
	if known && !last.awaited {
		return last.id, false
	}
	if !known {
		last.backoff = timeouts.Policy{}.Backoff(MethodStatus, codes.Unavailable) // as a status, it changes nothing
	}
	v.asking[about] = sets.New(machine)
	spec := pv.Spec.DeepCopy()
	if !v.options.Run(func(ctx context.Context) { v.ask(ctx, about, identifier, spec, last.backoff) }) {
		delete(v.asking, about)
	}
	return "", true
}

func (v *Volumes) ask(ctx context.Context, about question, identifier driver.VolumeIdentifier, spec *corev1.PersistentVolumeSpec, backoff wait.Backoff) {
	var news answer
	response, err := identifier.GetVolumeIDs(ctx, &driver.GetVolumeIDsRequest{PVSpecs: []*corev1.PersistentVolumeSpec{spec}})
	switch {
	case status.Is(err, codes.Unimplemented): // by what is behind a decorator
	case status.Is(err, codes.Unavailable):
		delay := backoff.Step()
		v.note(about, answer{awaited: true, backoff: backoff})
		v.wakeLater(about, delay)
		return
	case err != nil:
		news.failed = true
	case response != nil && len(response.VolumeIDs) > 0:
		news.id = response.VolumeIDs[0]
	}
	v.note(about, news)
	v.wake(about)
}

// wakeLater wakes the machines when the driver has registered again, and after a delay at the latest.
func (v *Volumes) wakeLater(about question, delay time.Duration) {
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

func (v *Volumes) note(about question, news answer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known.Add(about, news)
}

// wake wakes the machines that wait for a question.
func (v *Volumes) wake(about question) {
	v.mu.Lock()
	waiting := v.asking[about]
	delete(v.asking, about)
	v.mu.Unlock()
	for machine := range waiting {
		v.options.Wake(machine)
	}
}
