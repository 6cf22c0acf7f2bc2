package instance_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestFind checks the result for each response of the driver about an instance that is to be deleted.
func TestFind(t *testing.T) {
	for code := codes.OK; code <= codes.Uninitialized; code++ {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				d.OnStatus(fake.Always[driver.GetMachineStatusRequest](&driver.GetMachineStatusResponse{ProviderID: "sim://1"}, status.Error(code, "so it is")))
				switch result := ask(p.Find, request("m")); code {
				case codes.OK, codes.Uninitialized: // also without a node name, because the instance is being deleted
					if got := is[instance.Exists](t, result); got.Instance.ProviderID != "sim://1" {
						t.Errorf("instance %+v", got.Instance)
					}
				case codes.NotFound, codes.Unimplemented:
					is[instance.Gone](t, result)
				default:
					if got := is[instance.Failed](t, result); got.Failure.Code != code || got.Retry <= 0 {
						t.Errorf("failure %+v, retry after %v", got.Failure, got.Retry)
					}
				}
				equalCalls(t, d, fake.GetMachineStatus)
				ask(p.Find, request("m"))
				equalCalls(t, d) // the result is kept until its back-off expires
			})
		})
	}
}

// TestFind_WithoutResponse: a missing response is a failure.
func TestFind_WithoutResponse(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnStatus(fake.Always[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse](nil, nil))
		if got := is[instance.Failed](t, ask(p.Find, request("m"))); got.Failure.Code != codes.Internal {
			t.Errorf("failure %+v", got.Failure)
		}
	})
}

// TestFind_AwaitsCreation checks that Find waits for a creation in progress and returns its VM.
func TestFind_AwaitsCreation(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(func(ctx context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
			err := hang(ctx, time.Second)
			_, _ = do()
			return nil, err
		})
		p.Ensure(request("m"))
		synctest.Wait()
		is[instance.Pending](t, p.Find(request("m")))
		time.Sleep(grace + 2*time.Second)
		is[instance.Exists](t, ask(p.Find, request("m")))
		checkOverlaps(t, d)
	})
}

// TestDeleting checks that Deleting returns true from the first Delete until the instance is forgotten.
func TestDeleting(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		req := request("m")
		key := keyOf(req)
		if p.Deleting(key) {
			t.Error("before any call")
		}
		ask(p.Find, req)
		if p.Deleting(key) {
			t.Error("during Find")
		}
		p.Delete(req)
		if !p.Deleting(key) {
			t.Error("not during the call")
		}
		synctest.Wait()
		is[instance.Gone](t, p.Delete(req))
		if !p.Deleting(key) {
			t.Error("not after the call")
		}
		p.Forget(key)
		if p.Deleting(key) {
			t.Error("after it was forgotten")
		}
	})
}

// TestAbandon checks that a call in progress is canceled and awaited, that the instance it created is returned,
// and that no other call is made.
func TestAbandon(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		req := request("m")
		key := keyOf(req)
		is[instance.Gone](t, p.Abandon(key))
		d.OnCreate(func(ctx context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
			_ = hang(ctx, time.Second)
			return do()
		})
		p.Ensure(req)
		synctest.Wait()
		if got := is[instance.Pending](t, p.Abandon(key)); got.Since.IsZero() {
			t.Error("the start time of the creation is missing")
		}
		time.Sleep(2 * time.Second)
		if got := is[instance.Exists](t, p.Abandon(key)); got.Instance.ProviderID != "sim://1" {
			t.Errorf("VM %q after it", got.Instance.ProviderID)
		}
		if p.wakes(req) != 1 {
			t.Errorf("woken %d times, want once", p.wakes(req))
		}
		equalCalls(t, d, fake.GetMachineStatus, fake.CreateMachine)
	})
}
