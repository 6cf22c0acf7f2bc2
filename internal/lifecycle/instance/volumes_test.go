package instance

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
)

// identifier is a driver that uses CSI handles as the IDs of volumes, and counts the calls.
type identifier struct {
	driver.Driver
	prefix string
	asked  map[string]int
	err    error
}

func newIdentifier(prefix string, err error) *identifier {
	return &identifier{prefix: prefix, asked: map[string]int{}, err: err}
}

func (d *identifier) GetVolumeIDs(_ context.Context, request *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	handle := request.PVSpecs[0].CSI.VolumeHandle
	d.asked[handle]++
	if d.prefix == "" {
		return &driver.GetVolumeIDsResponse{}, d.err
	}
	return &driver.GetVolumeIDsResponse{VolumeIDs: []string{d.prefix + handle}}, d.err
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

// identification is the environment of Identify.
type identification struct {
	*testing.T
	drivers *registry.Registry
	volumes *Volumes

	// later are the tasks that have not run yet, and woken the woken machines.
	later []func(context.Context)
	woken []Key
}

// identifying returns drivers that may register, and machines that are named after their class's provider.
func identifying(t *testing.T, drivers map[string]driver.Driver) *identification {
	t.Helper()
	i := &identification{T: t, drivers: registry.New(registry.Options{})}
	for name, d := range drivers {
		i.register(name, d)
	}
	i.volumes = NewVolumes(VolumesOptions{
		Drivers: i.drivers, Wake: func(machine Key) { i.woken = append(i.woken, machine) },
		Run: func(task func(context.Context)) bool {
			i.later = append(i.later, task)
			return true
		},
		Class: func(_ context.Context, machine Key) (*v1alpha1.MachineClass, error) {
			if machine.Name == "" {
				return nil, nil
			}
			return &v1alpha1.MachineClass{Provider: machine.Name}, nil
		},
	})
	return i
}

func (i *identification) register(name string, d driver.Driver) {
	i.Helper()
	if _, err := i.drivers.Register(name, d); err != nil {
		i.Fatal(err)
	}
}

// look returns the ID of a volume for a machine of a provider, or "pending".
func (i *identification) look(provider string, pv *corev1.PersistentVolume) string {
	i.Helper()
	id, pending, err := i.volumes.Identify(i.Context(), Key{Name: provider}, pv)
	if err != nil {
		i.Fatal(err)
	}
	if pending {
		return "pending"
	}
	return id
}

// work runs the tasks.
func (i *identification) work() {
	for _, task := range i.later {
		task(i.Context())
	}
	i.later = nil
}

// learn runs the call of the driver, and returns its result.
func (i *identification) learn(provider string, pv *corev1.PersistentVolume) string {
	i.Helper()
	i.look(provider, pv)
	i.work()
	return i.look(provider, pv)
}

// TestVolumes_UsesDriverOfMachine checks that only the driver of the machine's class is called, and that its
// result is not used for another driver.
func TestVolumes_UsesDriverOfMachine(t *testing.T) {
	aws, gcp := newIdentifier("aws-", nil), newIdentifier("gcp-", nil)
	i := identifying(t, map[string]driver.Driver{
		"aws": aws, "gcp": gcp, "bare": struct{ driver.Driver }{},
		"knows-nothing": newIdentifier("", nil), "lacks": newIdentifier("", status.Error(codes.Unimplemented, "not here")),
	})
	pv := volumeNumber(1)
	for provider, want := range map[string]string{"knows-nothing": "", "lacks": "", "AWS": "aws-volume-1", "bare": ""} {
		if got := i.learn(provider, pv); got != want {
			t.Errorf("for driver %s the ID is %q, want %q", provider, got, want)
		}
	}
	if len(gcp.asked) > 0 {
		t.Error("another driver was called")
	}
	if got := i.learn("gcp", pv); got != "gcp-volume-1" {
		t.Errorf("for the next driver, the ID is %q", got)
	}
	if got := i.look("aws", pv); got != "aws-volume-1" || aws.asked["volume-1"] != 1 {
		t.Errorf("for the first driver, the ID is now %q, with %d calls", got, aws.asked["volume-1"])
	}
}

// TestVolumes_LateDriver checks that volumes of a driver that has not registered yet are pending, and those
// of other drivers are not.
func TestVolumes_LateDriver(t *testing.T) {
	i := identifying(t, map[string]driver.Driver{"aws": newIdentifier("aws-", nil)})
	pv := volumeNumber(1)
	if got := i.look("late", pv); got != "pending" || len(i.later) > 0 {
		t.Errorf("before its driver registers: %q, %d calls", got, len(i.later))
	}
	if got := i.learn("aws", pv); got != "aws-volume-1" {
		t.Errorf("of another driver: %q", got)
	}
	i.register("late", newIdentifier("late-", nil))
	if got := i.learn("late", pv); got != "late-volume-1" {
		t.Errorf("after it has registered: %q", got)
	}
	if got := i.look("", pv); got != "" {
		t.Errorf("without a class: %q", got)
	}
}

// TestVolumes_DisconnectedDriver checks that an unavailable driver is called again, with increasing delays and
// when it is back. After other errors, volumes are not pending.
func TestVolumes_DisconnectedDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newIdentifier("aws-", status.Error(codes.Unavailable, "not connected"))
		i := identifying(t, map[string]driver.Driver{"aws": d, "other": newIdentifier("other-", nil)})
		pv, begin := volumeNumber(1), time.Now()
		for _, after := range []time.Duration{time.Second, 3 * time.Second, 7 * time.Second} {
			i.look("aws", pv)
			i.work()
			if got := i.look("aws", pv); got != "pending" || len(i.woken) > 0 {
				t.Fatalf("right after an error: %q, woken %v", got, i.woken)
			}
			time.Sleep(time.Until(begin.Add(after)))
			synctest.Wait()
			if len(i.woken) != 1 {
				t.Fatalf("after %v: woken %v", after, i.woken)
			}
			i.woken = nil
		}
		if d.asked["volume-1"] != 3 {
			t.Errorf("called %d times", d.asked["volume-1"])
		}
		i.look("aws", pv)
		i.work()
		d.err = nil
		i.drivers.Announce("other")
		synctest.Wait()
		if len(i.woken) > 0 {
			t.Errorf("when another driver is back: woken %v", i.woken)
		}
		i.drivers.Announce("AWS")
		synctest.Wait()
		if len(i.woken) != 1 {
			t.Errorf("when it is back: woken %v", i.woken)
		}
		if got := i.learn("aws", pv); got != "aws-volume-1" {
			t.Errorf("when it is back: %q", got)
		}
		d.err = status.Error(codes.Internal, "odd")
		other := volumeNumber(2)
		if got := i.learn("aws", other); got != "" {
			t.Errorf("after an error: %q", got)
		}
		d.err = nil
		if got := i.learn("aws", other); got != "aws-volume-2" {
			t.Errorf("called again: %q", got)
		}
	})
}

// TestVolumes_RetriesTemporaryErrors checks that the volumes of a Pod are pending while the driver is called again after
// an error that may be temporary, but not for longer than retriedFor in total. Otherwise a driver that always returns
// such an error would block all drains.
func TestVolumes_RetriesTemporaryErrors(t *testing.T) {
	for name, failure := range map[string]error{
		"without a code":     errors.New("odd"),
		"Unknown":            status.Error(codes.Unknown, "odd"),
		"DeadlineExceeded":   status.Error(codes.DeadlineExceeded, "slow"),
		"an expired context": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newIdentifier("aws-", failure)
				i := identifying(t, map[string]driver.Driver{"aws": d})
				pv, begin := volumeNumber(1), time.Now()
				next := func() string {
					i.look("aws", pv)
					i.work()
					return i.look("aws", pv)
				}
				got := next()
				if got != "pending" {
					t.Fatalf("after the first error: %q", got)
				}
				for got == "pending" && time.Since(begin) < time.Hour {
					i.woken = nil
					for len(i.woken) == 0 {
						time.Sleep(time.Second)
						synctest.Wait()
					}
					got = next()
				}
				if waited := time.Since(begin); got != "" || waited < retriedFor || waited > 2*retriedFor {
					t.Errorf("after %v: %q", waited, got)
				}
				if got := next(); got != "" {
					t.Errorf("the next call: %q, want no further wait", got)
				}
				d.err = nil
				if got := next(); got != "aws-volume-1" {
					t.Errorf("when the driver works again: %q", got)
				}
			})
		})
	}
}

// TestVolumes_CacheIsBounded checks that a long-running process remembers a limited number of volumes, and keeps
// the most recently used ones.
func TestVolumes_CacheIsBounded(t *testing.T) {
	d := newIdentifier("x-", nil)
	i := identifying(t, map[string]driver.Driver{"x": d})
	const count = 5_000
	for n := range count {
		i.look("x", volumeNumber(n))
		i.work()
	}
	last := volumeNumber(count - 1)
	if got := i.look("x", last); got != "x-"+last.Name || d.asked[last.Name] != 1 {
		t.Errorf("the ID of the last volume is %q, with %d calls", got, d.asked[last.Name])
	}
	if got := i.look("x", volumeNumber(0)); got != "pending" {
		t.Error("the result for the first of many volumes is still remembered")
	}
}

// TestVolumes_WakesMachineOnce checks that repeated passes of a machine lead to a single wake-up while the driver
// is unresponsive.
func TestVolumes_WakesMachineOnce(t *testing.T) {
	i := identifying(t, map[string]driver.Driver{"x": newIdentifier("x-", nil)})
	for range 100 {
		i.look("x", volumeNumber(1))
	}
	i.work()
	if len(i.woken) != 1 {
		t.Errorf("%d wake-ups, want 1", len(i.woken))
	}
}
