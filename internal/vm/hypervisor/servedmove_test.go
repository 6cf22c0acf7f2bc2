package hypervisor_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/served"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/internal/vm/storage/diskserver"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// fences performs the controller's part for served disks. It opens the disks to the holder and the target, and
// grants no lease before all earlier hypervisors are excluded.
type fences struct {
	t          *testing.T
	controller *fakeController
	server     *diskserver.Server
	serving    chan struct{} // closed when the server is running
	stop       func()        // stops the server and waits until no one writes

	mu      sync.Mutex
	at      *vmpb.DiskServer
	last    storage.Token            // the last token that was assigned
	of      map[string]storage.Token // the tokens by Pod
	open    map[storage.Token]bool
	revoked storage.Token
	holder  *vmpb.HypervisorID
}

// newServedCluster returns a testCluster of a VM whose disks are served from the start of its source.
func newServedCluster(t *testing.T) *testCluster {
	t.Helper()
	h := newTestCluster(t)
	h.leases(lease.DefaultDuration)
	f := &fences{
		t: t, controller: h.controller, serving: make(chan struct{}), of: map[string]storage.Token{}, open: map[storage.Token]bool{},
		holder: &vmpb.HypervisorID{PodName: "web-1"},
	}
	h.fences = f
	h.controller.Change(func(a *authority) { a.complete, a.after = f.complete, f.moved })
	return h
}

// servedSource starts the hypervisor web-1 and the disk server.
func (h *testCluster) servedSource() *member {
	h.t.Helper()
	source := h.source()
	disks := []diskserver.Disk{{Name: session.Export(""), Path: source.disk}}
	for _, data := range h.data {
		path := source.data[data.GetName()]
		must(h.t, os.WriteFile(path, nil, 0o600))
		must(h.t, os.Truncate(path, int64(data.GetBytes())))
		disks = append(disks, diskserver.Disk{Name: session.Export(data.GetName()), Path: path})
	}
	server, err := diskserver.New(diskserver.Config{Disks: disks, Run: h.t.TempDir()})
	must(h.t, err)
	token := filepath.Join(h.t.TempDir(), "token")
	must(h.t, os.WriteFile(token, []byte(disksPod), 0o600))
	credentials, err := identity.ForHypervisor(identity.Options{Authority: h.authority, TokenFile: token, Endpoint: h.line.Addr().String()})
	must(h.t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(ctx, listener, identity.Siblings{Credentials: credentials, Namespace: "default", VM: "web"}.AcceptAny)
	}()
	f := h.fences
	f.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		_ = server.Close()
	})
	h.t.Cleanup(f.stop)
	f.server, f.at = server, &vmpb.DiskServer{Address: listener.Addr().String(), Pod: disksPod}
	close(f.serving)
	return source
}

// complete adds the location of the disks once they are open. It withholds the lease until all earlier hypervisors
// are excluded.
func (f *fences) complete(us *vmpb.HypervisorID, response *vmpb.RunLeaseUpdate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	token := f.of[us.GetPodName()]
	if token == 0 {
		token = f.next(us.GetPodName())
	}
	response.FencingToken = uint64(token)
	if f.open[token] {
		response.DiskServer = f.at
	}
	if f.revoked < token-1 {
		response.ValidFor = nil
	}
}

// next assigns another token to a Pod and opens the disks with it. The caller must hold the lock.
func (f *fences) next(pod string) storage.Token {
	f.last++
	token := f.last
	f.of[pod] = token
	go func() {
		<-f.serving
		if f.server.Open(context.Background(), token, pod) == nil {
			f.change(func() { f.open[token] = true })
		}
	}()
	return token
}

// change changes the responses.
func (f *fences) change(apply func()) {
	f.mu.Lock()
	apply()
	f.mu.Unlock()
	f.controller.Change(func(*authority) {})
}

// moved excludes the previous holder. A source that takes the VM back starts over.
func (f *fences) moved(us *vmpb.HypervisorID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holder.GetRunId() == us.GetRunId() {
		return nil // called again
	}
	if f.holder.GetPodName() == us.GetPodName() {
		f.next(us.GetPodName())
	}
	f.holder = us
	before := f.of[us.GetPodName()] - 1
	go func() {
		if f.server.Revoke(context.Background(), before) == nil {
			f.change(func() { f.revoked = before })
		}
	}()
	return nil
}

// wantRevoked checks how many of the assigned tokens are revoked.
func (f *fences) wantRevoked(revoked, given storage.Token) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.revoked != revoked || f.last != given {
		f.t.Errorf("%[2]d of %[1]d tokens are revoked, want %[4]d of %[3]d", f.last, f.revoked, given, revoked)
	}
}

// wantAll terminates the hypervisor and the server, and checks the disks.
func (f *fences) wantAll(m *member, console *counting) {
	f.t.Helper()
	m.kill()
	console.toTheEnd()
	f.stop()
	m.wantAll(console.last)
}

// TestServedDisks_Migration moves a guest with served disks twice. Only the hypervisor that runs it can write.
func TestServedDisks_Migration(t *testing.T) {
	tier.All(t)
	h := newServedCluster(t)
	here := h.servedSource()
	console := here.counts()
	for _, pod := range []string{"web-2", "web-3"} {
		console.numbers(30)
		here, console = h.follows(here, console, pod)
	}
	console.numbers(30)
	h.fences.wantRevoked(2, 3)
	h.neverFailed()
	h.fences.wantAll(here, console)
}

// neverFailed checks that no guest was stopped because of its disks.
func (h *testCluster) neverFailed() {
	h.t.Helper()
	for _, report := range h.controller.Reports() {
		if report.GetCause() == vmpb.ReportStateRequest_CAUSE_STORAGE_FAILED {
			h.t.Errorf("a guest was stopped because of its disks: %v", report)
		}
	}
}

// Whichever process is killed, the guest continues where the controller decides, with everything that it has
// written. A source that takes the guest back has new sessions with a token above the target's, and the guest does
// not notice.
func TestServedDisks_ProcessKilled(t *testing.T) {
	tier.All(t)
	t.Run("target during the copy", func(t *testing.T) {
		h := newServedCluster(t)
		h.slow = true
		source := h.servedSource()
		here := source.counts()
		here.numbers(30)
		target := h.moves("web-2")
		h.awaitPhase(copying)
		target.kill()
		h.awaitPhase(failed)
		here.numbers(30)
		h.fences.wantRevoked(0, 2)
		h.neverFailed()
		h.fences.wantAll(source, here)
	})
	for name, killed := range map[string]string{"source after the commit": "web-1", "target after the commit": "web-2"} {
		t.Run(name, func(t *testing.T) {
			h := newServedCluster(t)
			h.departure.Switchover = waitTimeout
			if killed == "web-2" {
				h.departure.Switchover = time.Second
			}
			asked, release := h.holdSwitchovers()
			source := h.servedSource()
			here := source.counts()
			here.numbers(30)
			target := h.moves("web-2")
			<-asked
			if killed == "web-1" {
				source.kill()
				release()
				here.toTheEnd()
				there := here.continuesOn(target)
				there.numbers(30)
				h.fences.wantAll(target, there)
				return
			}
			target.kill()
			release()
			h.awaitReturn(source)
			here.numbers(60)
			h.fences.wantRevoked(2, 3)
			h.letsGo(source)
			there := h.moves("web-3")
			here.toTheEnd()
			source.wantEnd(vmpb.EndTerminated)
			h.neverFailed()
			here = here.continuesOn(there)
			here.numbers(30)
			h.fences.wantAll(there, here)
		})
	}
}

// attaching returns a response that only locates the disks and grants nothing.
func attaching(token uint64, at string) *vmpb.RunLeaseUpdate {
	update := leaseOK()
	update.FencingToken = token
	if at != "" {
		update.DiskServer = &vmpb.DiskServer{Address: at, Pod: disksPod}
	}
	return update
}

// A response without a duration locates the disks, but does not let the guest run.
func TestLease_ResponseWithoutDurationLocatesDisks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, begin, d := newFakeController(), time.Now(), &fakeWatchdog{lost: make(chan struct{})}
		t.Cleanup(c.Close)
		c.Respond(attaching(7, "10.0.0.1:1"))
		held := controller.OpenExpiring(&vmpb.HypervisorID{PodName: "web-2", RunId: 1}, slog.New(slog.DiscardHandler), func() {}, controller.Terms{
			Duration: time.Minute, Now: func() lease.Instant { return time.Since(begin) }, Watchdog: d,
			Connect: func() (*grpc.ClientConn, error) { return c.Connect("") },
		})
		defer held.Close()
		disks := served.New(served.Options{})
		disks.Follow(held)
		synctest.Wait()
		at := controller.DiskServer{Address: "10.0.0.1:1", Pod: disksPod}
		want := controller.Authorization{Token: 7, DiskServer: at}
		got, _ := held.Current()
		if diff := gocmp.Diff(want, got); diff != "" || held.Left() != 0 || d.sets > 0 {
			t.Errorf("Left() = %v, the watchdog was set %d times (-want +got):\n%s", held.Left(), d.sets, diff)
		}
		if !disks.Located() {
			t.Error("the location of the disks is unknown")
		}

		pass(25 * time.Second)
		granted := attaching(7, "10.0.0.1:1")
		granted.ValidFor = leaseFor(time.Minute).GetValidFor()
		c.Respond(granted)
		synctest.Wait()
		want.Granted = true
		got, _ = held.Current()
		if diff := gocmp.Diff(want, got); diff != "" || held.Left() == 0 {
			t.Errorf("Left() = %v (-want +got):\n%s", held.Left(), diff)
		}
		left := held.Left()
		c.Respond(attaching(7, "10.0.0.2:1")) // does not extend the lease
		pass(time.Second)
		want.DiskServer.Address = "10.0.0.2:1"
		got, _ = held.Current()
		if diff := gocmp.Diff(want, got); diff != "" || held.Left() != left-time.Second {
			t.Errorf("Left() = %v, before %v (-want +got):\n%s", held.Left(), left, diff)
		}
		for _, nowhere := range []*vmpb.RunLeaseUpdate{attaching(7, ""), attaching(0, "10.0.0.2:1")} {
			c.Respond(nowhere)
			synctest.Wait()
			if disks.Located() {
				t.Errorf("the disks have a location with %v", nowhere)
			}
		}
	})
}

// The target of a migration reports that it waits for its guest only once it has found the disks. It terminates on
// request.
func TestServedDisks_TargetWaitsForDisks(t *testing.T) {
	for name, update := range map[string]*vmpb.RunLeaseUpdate{
		"no server": attaching(7, ""), "no token": attaching(0, "127.0.0.1:1"),
	} {
		t.Run(name, func(t *testing.T) {
			withExpiringLease(t, func(w *fixture, d *fakeWatchdog) {
				w.config.Spec.Mode = vmpb.VMSpec_SM_INCOMING_MIGRATION
				w.config.Spec.DisksServed = true
				w.config.DiskServer, w.config.Migration = (identity.Siblings{}).Connect, &hypervisor.Migration{}
				w.controller.Respond(update)
				p := w.start()
				pass(4 * time.Minute)
				p.wantAlive()
				if reports, started := w.controller.Reports(), w.machines.Started(); len(reports) > 0 || len(started) > 0 || d.sets > 0 {
					t.Errorf("reports = %v, started %d machines", reports, len(started))
				}
				w.controller.Respond(leaseTerminated())
				p.wantEnd(vmpb.EndTerminated)
			})
		})
	}
}
