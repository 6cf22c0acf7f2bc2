package instance_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestPending_Since checks that a pending result has the start time of the running call, even if the call is for
// another goal.
func TestPending_Since(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(hanging(time.Hour))
		begin := time.Now()
		if got := is[instance.Pending](t, p.Ensure(request("m"))); !got.Since.Equal(begin) {
			t.Errorf("a call that begins: since %v, want %v", got.Since, begin)
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		if got := is[instance.Pending](t, p.Ensure(request("m"))); !got.Since.Equal(begin) {
			t.Errorf("a call that runs: since %v, want %v", got.Since, begin)
		}
		if got := is[instance.Pending](t, p.Delete(request("m"))); !got.Since.Equal(begin) {
			t.Errorf("a waiting deletion: since %v, want %v", got.Since, begin)
		}
		time.Sleep(2 * time.Hour)
		is[instance.Gone](t, ask(p.Delete, request("m")))
	})
}

// TestEngine_SlowCreation checks that a creation may take as long as the call timeout, and that a creation whose
// response was lost is not repeated: the VM is found instead.
func TestEngine_SlowCreation(t *testing.T) {
	cases := map[string]struct {
		timeout time.Duration
		want    []fake.Method
	}{
		"within the timeout": {25 * time.Minute, []fake.Method{fake.GetMachineStatus, fake.CreateMachine}},
		"beyond the timeout": {10 * time.Minute, []fake.Method{fake.GetMachineStatus, fake.CreateMachine, fake.GetMachineStatus}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, _ *process) {
				d.OnCreate(func(ctx context.Context, _ *driver.CreateMachineRequest, create func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
					resp, err := create()
					select {
					case <-time.After(20 * time.Minute):
						return resp, err
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				})
				p := start(t, instrument.Wrap(d, instrument.Options{Timeout: tc.timeout}), func(o *instance.Options) { o.CallTimeout = tc.timeout })
				if got := is[instance.Pending](t, p.Ensure(request("m"))); got.SilentIn(time.Now()) != tc.timeout+tc.timeout/2 {
					t.Errorf("unresponsive in %v", got.SilentIn(time.Now()))
				}
				time.Sleep(time.Hour)
				if got := is[instance.Exists](t, ask(p.Ensure, request("m"))); got.Instance.ProviderID != "sim://1" {
					t.Errorf("got VM %s", got.Instance.ProviderID)
				}
				equalCalls(t, d, tc.want...)
				if vms := d.VMs(); len(vms) != 1 {
					t.Errorf("got %d VMs", len(vms))
				}
			})
		})
	}
}

// TestEngine_OutOfRangeTriggersOrphanCollector checks that the collector of orphans is triggered when a driver begins to return OutOfRange,
// and not each time that it returns it again.
func TestEngine_OutOfRangeTriggersOrphanCollector(t *testing.T) {
	cases := map[string]struct {
		find, create []codes.Code
		want         int
	}{
		"never":          {nil, nil, 0},
		"once":           {[]codes.Code{codes.OutOfRange}, nil, 1},
		"over and over":  {[]codes.Code{codes.OutOfRange, codes.OutOfRange, codes.OutOfRange}, nil, 1},
		"again":          {[]codes.Code{codes.OutOfRange, codes.Unavailable, codes.OutOfRange}, nil, 2},
		"something else": {[]codes.Code{codes.Internal}, nil, 0},
		"of a creation":  {nil, []codes.Code{codes.OutOfRange}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, _ *process) {
				d.Fail(fake.GetMachineStatus, tc.find...)
				d.Fail(fake.CreateMachine, tc.create...)
				calls := 0
				engine := instance.New(d, instance.Options{
					Run:        func(task func(context.Context)) bool { go task(t.Context()); return true },
					Wake:       func(instance.Key) {},
					OutOfRange: func() { calls++ },
				})
				for range 10 {
					if kind(ask(engine.Ensure, request("m"))) == "Exists" {
						break
					}
					time.Sleep(time.Hour)
				}
				if calls != tc.want {
					t.Errorf("called %d times, want %d", calls, tc.want)
				}
			})
		})
	}
}

// speechless is a driver that returns no response about volumes.
type speechless struct{ driver.Driver }

func (speechless) GetVolumeIDs(context.Context, *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return nil, nil
}

// TestVolumes_WithoutResponse checks that a missing response is treated as a missing ID.
func TestVolumes_WithoutResponse(t *testing.T) {
	var tasks []func(context.Context)
	volumes := instance.NewVolumes(instance.VolumesOptions{
		Drivers: registry.Only("speechless", speechless{newDriver()}), Wake: func(instance.Key) {},
		Run: func(task func(context.Context)) bool { tasks = append(tasks, task); return true },
		Class: func(context.Context, instance.Key) (*v1alpha1.MachineClass, error) {
			return &v1alpha1.MachineClass{}, nil
		},
	})
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v"}}
	if _, pending, err := volumes.Identify(t.Context(), instance.Key{}, volume); !pending || err != nil {
		t.Errorf("before the response: pending %v, %v", pending, err)
	}
	for _, task := range tasks {
		task(t.Context())
	}
	if got, pending, err := volumes.Identify(t.Context(), instance.Key{}, volume); got != "" || pending || err != nil {
		t.Errorf("%q, %v, want no ID and no error", got, err)
	}
}
