package instance

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/driver"
)

// identifier names each volume after its CSI handle, and counts the questions.
type identifier struct {
	driver.Driver
	asked map[string]int
}

func (d identifier) GetVolumeIDs(_ context.Context, request *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	handle := request.PVSpecs[0].CSI.VolumeHandle
	d.asked[handle]++
	return &driver.GetVolumeIDsResponse{VolumeIDs: []string{handle}}, nil
}

func volumeNumber(i int) *corev1.PersistentVolume {
	name := fmt.Sprintf("volume-%d", i)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{VolumeHandle: name},
		}},
	}
}

// TestVolumesAreForgotten: a process that drains for months remembers a bounded number of
// volumes, and among them those that were needed last.
func TestVolumesAreForgotten(t *testing.T) {
	d := identifier{asked: map[string]int{}}
	volumes := NewVolumes(d, nil, func(Key) {})
	var later []func(context.Context)
	volumes.run = func(ask func(context.Context)) bool {
		later = append(later, ask)
		return true
	}
	const count = 10_000
	for i := range count {
		volumes.Identify(Key{}, volumeNumber(i))
		for _, ask := range later {
			ask(t.Context())
		}
		later = nil
	}
	last := volumeNumber(count - 1)
	if id, pending := volumes.Identify(Key{}, last); id != last.Name || pending || d.asked[last.Name] != 1 {
		t.Errorf("the last volume is %q (pending %t), and was asked for %d times", id, pending, d.asked[last.Name])
	}
	if _, pending := volumes.Identify(Key{}, volumeNumber(0)); !pending {
		t.Error("the answer for the first of many volumes is still there")
	}
}

// TestWaitingForAVolumeOnce: passes of a machine while the driver is silent leave one wake-up.
func TestWaitingForAVolumeOnce(t *testing.T) {
	var woken []Key
	var ask func(context.Context)
	volumes := NewVolumes(identifier{asked: map[string]int{}}, func(f func(context.Context)) bool {
		ask = f
		return true
	}, func(machine Key) { woken = append(woken, machine) })
	for range 100 {
		volumes.Identify(Key{Name: "m"}, volumeNumber(1))
	}
	ask(t.Context())
	if len(woken) != 1 {
		t.Errorf("%d wake-ups, want 1", len(woken))
	}
}
