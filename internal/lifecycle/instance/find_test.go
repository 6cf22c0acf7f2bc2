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

// TestFind: what each answer of the driver says of an instance that is to be deleted.
func TestFind(t *testing.T) {
	for code := codes.OK; code <= codes.Uninitialized; code++ {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				d.OnStatus(fake.Always[driver.GetMachineStatusRequest](&driver.GetMachineStatusResponse{ProviderID: "sim://1"}, status.Error(code, "so it is")))
				answer := ask(p.Find, request("m"))
				want := instance.Failed
				switch code {
				case codes.OK, codes.Uninitialized:
					want = instance.Exists // also without a name for its node: it is to go, not to join
				case codes.NotFound, codes.Unimplemented:
					want = instance.Gone
				}
				if answer.State != want {
					t.Fatalf("state %v, want %v", answer.State, want)
				}
				if want == instance.Exists && answer.Instance.ProviderID != "sim://1" {
					t.Errorf("instance %+v", answer.Instance)
				}
				if want == instance.Failed && (answer.Failure.Code != code || answer.Retry <= 0) {
					t.Errorf("failure %+v, retry after %v", answer.Failure, answer.Retry)
				}
				equalCalls(t, d, fake.GetMachineStatus)
				ask(p.Find, request("m"))
				equalCalls(t, d) // the answer stands until its back-off is over
			})
		})
	}
}

// TestFindWithoutResponse: nothing is no answer.
func TestFindWithoutResponse(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnStatus(fake.Always[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse](nil, nil))
		if got := ask(p.Find, request("m")); got.State != instance.Failed || got.Failure.Code != codes.Internal {
			t.Errorf("answer %+v", got)
		}
	})
}

// TestFindAwaitsACreation: the VM that is just being made is the one to be found.
func TestFindAwaitsACreation(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(func(ctx context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
			err := hang(ctx, time.Second)
			_, _ = do()
			return nil, err
		})
		p.Ensure(request("m"))
		synctest.Wait()
		if got := p.Find(request("m")); got.State != instance.Underway {
			t.Fatalf("state %v while a creation runs", got.State)
		}
		time.Sleep(grace + 2*time.Second)
		if got := ask(p.Find, request("m")); got.State != instance.Exists {
			t.Errorf("state %v after it", got.State)
		}
		checkOverlaps(t, d)
	})
}

// TestDeleting: from the first Delete on, until the instance is forgotten.
func TestDeleting(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		req := request("m")
		key := keyOf(req)
		if p.Deleting(key) {
			t.Error("before anything was asked")
		}
		ask(p.Find, req)
		if p.Deleting(key) {
			t.Error("while it is only looked for")
		}
		p.Delete(req)
		if !p.Deleting(key) {
			t.Error("not while the call runs")
		}
		synctest.Wait()
		if got := p.Delete(req); got.State != instance.Gone || !p.Deleting(key) {
			t.Errorf("state %v, deleting: %v", got.State, p.Deleting(key))
		}
		p.Forget(key)
		if p.Deleting(key) {
			t.Error("after it was forgotten")
		}
	})
}

// TestAbandon: a call that is under way is cancelled and awaited, what it brought is told,
// and nothing is begun.
func TestAbandon(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		req := request("m")
		key := keyOf(req)
		if got := p.Abandon(key); got.State != instance.Gone {
			t.Errorf("state %v before anything was asked", got.State)
		}
		d.OnCreate(func(ctx context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
			_ = hang(ctx, time.Second)
			return do()
		})
		p.Ensure(req)
		synctest.Wait()
		if got := p.Abandon(key); got.State != instance.Underway || got.Since.IsZero() {
			t.Errorf("state %v, since %v, while a creation runs", got.State, got.Since)
		}
		time.Sleep(2 * time.Second)
		if got := p.Abandon(key); got.State != instance.Exists || got.Instance.ProviderID != "sim://1" {
			t.Errorf("state %v, VM %q after it", got.State, got.Instance.ProviderID)
		}
		if p.wakes(req) != 1 {
			t.Errorf("woken %d times, want once", p.wakes(req))
		}
		equalCalls(t, d, fake.GetMachineStatus, fake.CreateMachine)
	})
}
