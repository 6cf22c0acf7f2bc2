package instance

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Volumes identifies persistent volumes at a driver's provider. It asks the driver in tasks, and
// wakes the caller. Make one with NewVolumes.
type Volumes struct {
	driver driver.Driver
	run    func(func(ctx context.Context)) bool
	wake   func(Key)

	mu sync.Mutex
	// known are the IDs (*string) by the volume's UID, nil after an error.
	known *lru.Cache
	// asking are the machines that wait for an answer.
	asking map[types.UID]sets.Set[Key]
}

// maxKnown is how many answers are remembered: far more than drains need at a time. The driver is
// asked again for the volumes that were not needed for longest.
const maxKnown = 4096

// NewVolumes returns Volumes. Run and wake are those of Options.
func NewVolumes(d driver.Driver, run func(func(ctx context.Context)) bool, wake func(Key)) *Volumes {
	return &Volumes{driver: d, run: run, wake: wake, known: lru.New(maxKnown), asking: map[types.UID]sets.Set[Key]{}}
}

// Identify returns the provider's ID of a volume, for the drain of a machine: empty if the driver does
// not know it, or after an error, and then the driver is asked again. While it is pending the machine
// will be woken.
func (v *Volumes) Identify(machine Key, pv *corev1.PersistentVolume) (id string, pending bool) {
	identifier, able := v.driver.(driver.VolumeIdentifier)
	if !able {
		return "", false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if remembered, known := v.known.Get(pv.UID); known {
		answer, _ := remembered.(*string)
		if answer == nil {
			v.known.Remove(pv.UID)
		}
		return ptr.Deref(answer, ""), false
	}
	if waiting, under := v.asking[pv.UID]; under {
		waiting.Insert(machine)
	} else {
		v.asking[pv.UID] = sets.New(machine)
		spec := pv.Spec.DeepCopy()
		uid := pv.UID
		if !v.run(func(ctx context.Context) { v.ask(ctx, identifier, uid, spec) }) {
			delete(v.asking, uid)
		}
	}
	return "", true
}

func (v *Volumes) ask(ctx context.Context, identifier driver.VolumeIdentifier, uid types.UID, spec *corev1.PersistentVolumeSpec) {
	answer := new(string)
	response, err := identifier.GetVolumeIDs(ctx, &driver.GetVolumeIDsRequest{PVSpecs: []*corev1.PersistentVolumeSpec{spec}})
	switch {
	case status.Is(err, codes.Unimplemented): // by what is behind a decorator
	case err != nil:
		answer = nil
	case response != nil && len(response.VolumeIDs) > 0:
		answer = &response.VolumeIDs[0]
	}
	v.mu.Lock()
	v.known.Add(uid, answer)
	waiting := v.asking[uid]
	delete(v.asking, uid)
	v.mu.Unlock()
	for machine := range waiting {
		v.wake(machine)
	}
}
