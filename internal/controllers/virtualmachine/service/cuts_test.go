package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/memnet"
)

// TestRunLease_LostConnections checks that a run lease is closed soon after its hypervisor has become unreachable, and that
// lost connections do not use up the limits for new ones.
func TestRunLease_LostConnections(t *testing.T) {
	t.Attr("fault", "The connections of a hypervisor lose all traffic without being closed, ten times in a row")
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New()
		p := &port{T: t, cluster: &counting{}}
		var err error
		p.authority, err = identity.NewAuthority(time.Now())
		p.must(err)
		service := New(Options{
			Registry:  &authority.Registry{Client: p.cluster, APIReader: p.cluster, Clock: clock.RealClock{}},
			Authority: p.authority, Enqueue: func(types.NamespacedName, time.Duration) {},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- (&Server{Listener: network, Service: service}).Start(ctx) }()
		config := p.client(p.certificate(attacker))
		us := &vmpb.HypervisorID{Namespace: attacker.Namespace, VmName: attacker.VM, PodName: attacker.Pod, RunId: 1}
		for range 10 {
			conn, err := grpc.NewClient("passthrough:///controller",
				grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithContextDialer(network.Dial))
			p.must(err)
			defer conn.Close()
			stream, err := vmpb.NewVMControllerClient(conn).RunLease(ctx, &vmpb.RunLeaseRequest{Us: us})
			p.must(err)
			_, err = stream.Recv()
			p.must(err)
			if !service.HasLease(authority.KeyOf(us), us.GetPodName()) {
				t.Fatal("there is no lease")
			}
			network.Set(memnet.Cut{Lost: true})
			time.Sleep(2*20*time.Second + time.Second) // fake time
			synctest.Wait()
			if service.HasLease(authority.KeyOf(us), us.GetPodName()) {
				t.Error("the lease of a lost connection is open")
			}
		}
		cancel()
		p.must(<-ended)
	})
	t.Attr("outcome", "Each run lease is closed within 41 s, and the tenth connection is accepted like the first")
}
