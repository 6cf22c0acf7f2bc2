package service

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

// calls returns how many of a number of immediate calls are allowed. The context of each call is given by its number.
func calls(count int, method string, of func(n int) context.Context) int {
	limits := newLimits(testingclock.NewFakePassiveClock(time.Now()))
	allowed := 0
	for n := range count {
		if limits.check(of(n), method) == nil {
			allowed++
		}
	}
	return allowed
}

// TestLimits_CallsInTotal checks that calls are limited in total, even if each hypervisor stays within its own limit.
func TestLimits_CallsInTotal(t *testing.T) {
	count := callTotal.burst + 1000
	peers := make([]context.Context, count/callPeer.burst+1)
	for i := range peers {
		peers[i] = as(t, "vm", fmt.Sprintf("vm-%d", i))
	}
	got := calls(count, vmpb.VMController_ReportState_FullMethodName, func(n int) context.Context { return peers[n%len(peers)] })
	if want := callTotal.burst + callVM.burst; got != want { // all of them are hypervisors of one VM
		t.Errorf("%d calls were allowed, want %d", got, want)
	}
}

// TestLimits_CallsAreNotRefusedBecauseOfOthers checks that hypervisors that call as often as they can do not keep those of
// other VMs from calling, while these connect several times and report their state regularly.
func TestLimits_CallsAreNotRefusedBecauseOfOthers(t *testing.T) {
	const vms, seconds, calls = 150, 30, 12
	now := testingclock.NewFakePassiveClock(time.Now())
	limits := newLimits(now)
	hostile, honest := make([]context.Context, vms), make([]context.Context, vms)
	for i := range vms {
		hostile[i], honest[i] = as(t, fmt.Sprintf("hostile-%d", i), "vm-1"), as(t, fmt.Sprintf("honest-%d", i), "vm-1")
	}
	const report = vmpb.VMController_ReportState_FullMethodName
	connect := []string{vmpb.VMController_RunLease_FullMethodName, report, identitypb.CertificateAuthority_AwaitAuthorities_FullMethodName}
	refused := 0
	for second := range seconds {
		for i := range vms {
			for range calls {
				if limits.check(hostile[i], report) != nil {
					refused++
				}
			}
			methods := []string{}
			if (second+i)%10 == 0 {
				methods = append(methods, report)
			}
			if (second+i)%15 == 0 {
				methods = append(methods, connect...)
			}
			for _, method := range methods {
				if err := limits.check(honest[i], method); err != nil {
					t.Fatalf("after %d s, %s of VM %d is refused: %v", second, method, i, err)
				}
			}
		}
		now.SetTime(now.Now().Add(time.Second))
	}
	made := vms*seconds*calls - refused
	if most := callTotal.burst + seconds*int(callTotal.perSecond) + vms*(callVM.burst+seconds/10); made > most {
		t.Errorf("hostile hypervisors made %d calls, want at most %d", made, most)
	}
}

// TestServer_ClosesIdleConnections checks that a connection on which nothing is called does not stay open.
func TestServer_ClosesIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		server := grpc.NewServer(newLimits(clock.RealClock{}).serverOptions()...)
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(network) }()
		conn, err := grpc.NewClient("passthrough:///vmcontroller", grpc.WithContextDialer(network.Dial),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0))
		if err != nil {
			t.Fatal(err)
		}
		conn.Connect()
		if !conn.WaitForStateChange(t.Context(), connectivity.Idle) || !conn.WaitForStateChange(t.Context(), connectivity.Connecting) {
			t.Fatal("the client does not connect")
		}
		if state := conn.GetState(); state != connectivity.Ready {
			t.Fatalf("the connection is %s", state)
		}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*idleTime)
		defer cancel()
		if !conn.WaitForStateChange(ctx, connectivity.Ready) {
			t.Errorf("the connection is still open after %s", time.Since(begin))
		}
		_ = conn.Close()
		server.Stop()
		<-ended
		synctest.Wait()
	})
}
