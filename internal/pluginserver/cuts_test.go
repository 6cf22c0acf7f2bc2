package pluginserver_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/plugin"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/pluginserver"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

func codeOf(err error) codes.Code { return status.Code(err) }

// TestDriver_ReconnectsAfterCut checks that, whatever happens to the network, the driver registers again
// soon afterwards, and that a running operation completes.
func TestDriver_ReconnectsAfterCut(t *testing.T) {
	for name, cut := range map[string]memnet.Cut{
		"loses connections":             {Lost: true},
		"delays all traffic":            {Silent: true},
		"loses and refuses connections": {Refused: true, Lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Attr("fault", "The network between the manager and a driver in another process "+name+" during an operation")
			t.Attr("outcome", "The operation fails with Unavailable; the driver registers again within a minute after the network recovers")
			synctest.Test(t, func(t *testing.T) {
				m := newManager(t)
				inner := fake.New(fake.Config{})
				m.serve(inner, m.options("fake"))
				d := <-m.added
				block := inner.Block(fake.GetMachineStatus)
				running := ask(t.Context(), d, "one")
				<-block.Entered()

				m.network.Set(cut)
				wantCode(t, (<-running).err, codes.Unavailable)
				block.Release()
				time.Sleep(time.Minute)
				m.network.Set(memnet.Cut{})
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(m.returned) != 1 || <-m.returned != "fake" {
					t.Error("the return of the driver was not reported")
				}

				_, err := d.GetMachineStatus(t.Context(), statusRequest("one"))
				wantCode(t, err, codes.NotFound)
			})
		})
	}
}

// TestResult_LostOneCreatesNoSecondVM cuts the connection when the VM exists, before the manager learns of it.
func TestResult_LostOneCreatesNoSecondVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t)
		inner := fake.New(fake.Config{})
		created := make(chan struct{})
		inner.OnCreate(func(_ context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
			resp, err := do()
			m.network.Set(memnet.Cut{Lost: true})
			close(created)
			return resp, err
		})
		m.serve(inner, m.options("fake"))
		d := <-m.added
		r := statusRequest("one")
		request := &driver.CreateMachineRequest{Machine: r.Machine, MachineClass: r.MachineClass, Secret: r.Secret}
		_, err := d.CreateMachine(t.Context(), request)
		wantCode(t, err, codes.Unavailable)
		<-created
		inner.OnCreate(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		for range 2 {
			resp, err := d.CreateMachine(t.Context(), request)
			if err != nil || resp.ProviderID != inner.VMs()[0].ProviderID {
				t.Errorf("the repeated creation returns %+v, %v", resp, err)
			}
		}
		if len(inner.VMs()) != 1 {
			t.Errorf("VMs: %v", inner.VMs())
		}
	})
}

// TestDriver_SurvivesManagerRestart checks that the driver waits for the next manager and cancels the operations of the
// previous one.
func TestDriver_SurvivesManagerRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network atomic.Pointer[memnet.Network]
		inner := fake.New(fake.Config{})
		m := &manager{T: t}
		options := m.options("fake")
		options.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return network.Load().Dial(ctx, address)
		})}
		start := func() (added chan *pluginserver.Driver, stop func()) {
			network.Store(memnet.New())
			added = make(chan *pluginserver.Driver, 1)
			s := pluginserver.New(pluginserver.Options{Add: func(_ string, d *pluginserver.Driver) error { added <- d; return nil }})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- s.Serve(ctx, pluginserver.InMemory(network.Load())) }()
			return added, func() { cancel(); <-done }
		}
		added, stop := start()
		m.serve(inner, options)
		d := <-added
		block := inner.Block(fake.GetMachineStatus)
		running := ask(t.Context(), d, "one")
		<-block.Entered()
		stop()
		wantCode(t, (<-running).err, codes.Unavailable)
		block.Release()
		time.Sleep(time.Hour)
		added, stop = start()
		defer stop()
		_, err := (<-added).GetMachineStatus(t.Context(), statusRequest("one"))
		wantCode(t, err, codes.NotFound)
	})
}

func TestServe_StopsWithContext(t *testing.T) {
	m := newManager(t)
	inner := fake.New(fake.Config{})
	ended := make(chan struct{})
	inner.OnStatus(func(ctx context.Context, _ *driver.GetMachineStatusRequest, _ func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
		ended <- struct{}{}
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- plugin.Serve(ctx, inner, m.options("fake")) }()
	running := ask(soon(t), <-m.added, "one")
	<-ended
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the plug-in returned %v", err)
	}
	select {
	case <-ended:
	default:
		t.Error("the plug-in ended before its operation")
	}
	wantCode(t, (<-running).err, codes.Unavailable)
}
