package service

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// counting is a cluster without objects, in which no token is valid.
type counting struct {
	client.Client
	reviews, reads atomic.Int64
}

func (c *counting) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	c.reviews.Add(1)
	object.(*authenticationv1.TokenReview).Status.Authenticated = false
	return nil
}

func (c *counting) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	c.reads.Add(1)
	return apierrors.NewNotFound(schema.GroupResource{Resource: "virtualmachines"}, key.Name)
}

// port is the port of a VM controller that attackers use.
type port struct {
	*testing.T
	cluster   *counting
	authority *identity.Authority
	address   string
}

func newPort(t *testing.T) *port {
	t.Helper()
	p := &port{T: t, cluster: &counting{}}
	var err error
	p.authority, err = identity.NewAuthority(time.Now())
	p.must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	p.address = listener.Addr().String()
	server := &Server{Listener: listener, Service: New(Options{
		Registry:  &authority.Registry{Client: p.cluster, APIReader: p.cluster, Clock: clock.RealClock{}},
		Authority: p.authority, Enqueue: func(types.NamespacedName, time.Duration) {},
	})}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server returned %v", err)
		}
	})
	return p
}

func (p *port) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// client returns the TLS configuration of a client that accepts any server.
func (p *port) client(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: certificates}
}

var attacker = identity.Peer{Namespace: "pool", VM: "vm", Pod: "vm-1"}

// certificate returns the certificate of a hypervisor.
func (p *port) certificate(peer identity.Peer) tls.Certificate {
	p.Helper()
	key, request := p.request()
	der, err := p.authority.Sign(request, peer, time.Hour, time.Now())
	p.must(err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (p *port) request() (*ecdsa.PrivateKey, []byte) {
	p.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p.must(err)
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	p.must(err)
	return key, request
}

// admitted opens connections and returns those that the server accepts.
func (p *port) admitted(count int, config *tls.Config) (open []net.Conn) {
	p.Helper()
	for range count {
		conn, err := tls.Dial("tcp", p.address, config)
		if err != nil {
			continue
		}
		p.Cleanup(func() { conn.Close() })
		p.must(conn.SetDeadline(time.Now().Add(time.Minute)))
		if _, err := conn.Read(make([]byte, 1)); err == nil { // the HTTP/2 settings frame
			open = append(open, conn)
		}
	}
	return open
}

func (p *port) dial(config *tls.Config) *grpc.ClientConn {
	p.Helper()
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	p.must(err)
	p.Cleanup(func() { conn.Close() })
	return conn
}

// TestServer_LimitsAnonymousConnections checks that clients without a certificate get only a few connections, and that clients
// with one can connect in the meantime.
func TestServer_LimitsAnonymousConnections(t *testing.T) {
	p := newPort(t)
	if open := p.admitted(200, p.client()); len(open) == 0 || len(open) > 64 {
		t.Errorf("%d of 200 connections without a certificate are open, want 1 to 64", len(open))
	}
	if open := p.admitted(1, p.client(p.certificate(attacker))); len(open) != 1 {
		t.Error("there is no connection left for a hypervisor")
	}
}

// TestServer_LimitsConnectionsPerPeer checks that a hypervisor cannot use up the connections of others.
func TestServer_LimitsConnectionsPerPeer(t *testing.T) {
	p := newPort(t)
	open := p.admitted(50, p.client(p.certificate(attacker)))
	if len(open) == 0 || len(open) > 4 {
		t.Errorf("%d of 50 connections of one peer are open, want 1 to 4", len(open))
	}
	if other := p.admitted(1, p.client(p.certificate(identity.Peer{Namespace: "pool", VM: "b", Pod: "b-1"}))); len(other) != 1 {
		t.Error("there is no connection left for another hypervisor")
	}
}

// TestTokenReviews checks that not every request for a certificate causes a request to the API server.
func TestTokenReviews(t *testing.T) {
	p := newPort(t)
	issuer := identitypb.NewCertificateAuthorityClient(p.dial(p.client()))
	_, request := p.request()
	refused := 0
	for range 300 {
		_, err := issuer.Issue(t.Context(), &identitypb.IssueRequest{CertificateRequest: request, Token: "stolen"})
		if status.Code(err) == codes.ResourceExhausted {
			refused++
		}
	}
	if reviews := p.cluster.reviews.Load(); reviews == 0 || reviews > 150 || refused == 0 {
		t.Errorf("%d TokenReviews for 300 requests, of which %d were refused", reviews, refused)
	}
}

// TestServer_LimitsCallsPerPeer checks that a hypervisor has its own limits for the call rate, concurrent calls and message sizes.
func TestServer_LimitsCallsPerPeer(t *testing.T) {
	p := newPort(t)
	us := &vmpb.HypervisorID{Namespace: attacker.Namespace, VmName: attacker.VM, PodName: attacker.Pod, RunId: 1}
	calls := vmpb.NewVMControllerClient(p.dial(p.client(p.certificate(attacker))))
	report := &vmpb.ReportStateRequest{Us: us, State: vmpb.ReportStateRequest_STATE_RUNNING, Message: strings.Repeat("a", 1<<20)}
	if _, err := calls.ReportState(t.Context(), report); status.Code(err) != codes.ResourceExhausted || p.cluster.reads.Load() > 0 {
		t.Errorf("a report of 1 MiB: %v", err)
	}

	for range 8 {
		lease, err := calls.RunLease(t.Context(), &vmpb.RunLeaseRequest{Us: us})
		p.must(err)
		_, err = lease.Recv()
		p.must(err)
	}
	// All streams of the connection are in use.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := calls.ReportState(ctx, &vmpb.ReportStateRequest{Us: us}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call in addition to the maximum number of streams: %v", err)
	}

	others := vmpb.NewVMControllerClient(p.dial(p.client(p.certificate(attacker))))
	refused := 0
	for range 200 {
		if _, err := others.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: us}); status.Code(err) == codes.ResourceExhausted {
			refused++
		}
	}
	if refused < 100 {
		t.Errorf("%d of 200 reports in a row were refused", refused)
	}
}

// TestReport_OutdatedIsIgnored checks that a report that arrives after a later one of the same run is ignored.
func TestReport_OutdatedIsIgnored(t *testing.T) {
	s := New(Options{Registry: &authority.Registry{Clock: clock.RealClock{}}})
	vm := types.NamespacedName{Namespace: "pool", Name: "vm"}
	for _, report := range []struct {
		run, sequence uint64
		kept          bool
	}{{1, 2, true}, {1, 1, false}, {1, 3, true}, {1, 3, false}, {1, 0, true}, {1, 3, true}, {2, 1, true}} {
		_, kept := s.store(vm, &vmpb.ReportStateRequest{Us: &vmpb.HypervisorID{RunId: report.run}, Sequence: report.sequence})
		if kept != report.kept {
			t.Errorf("%+v was kept: %t", report, kept)
		}
		s.BeginPass(vm)
	}
}

// TestReport_WritesAreShared checks that the reports of a VM cause a bounded number of passes, and that these see a
// bounded number of changes. The last report is always written, even if other events cause passes in between. Reports
// of a normal start are not delayed.
func TestReport_WritesAreShared(t *testing.T) {
	for _, others := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond, 9_999 * time.Millisecond} {
		now := testingclock.NewFakePassiveClock(time.Now())
		queue := passes{vm: types.NamespacedName{Namespace: "pool", Name: "vm"}, clock: now, begin: now.Now(), others: others}
		s := New(Options{Registry: &authority.Registry{Clock: now}, Enqueue: queue.request})
		queue.service = s
		const reports = 10_000 // one per millisecond
		for i := range uint64(reports) {
			queue.report(i + 1)
			if i < writeBurst && queue.seen != i+1 {
				t.Errorf("other passes each %s: report %d is not written immediately", others, i+1)
			}
			queue.step()
		}
		for range writeEvery.Milliseconds() {
			queue.step()
		}
		if queue.seen != reports {
			t.Errorf("other passes each %s: the last write is for report %d", others, queue.seen)
		}
		if queue.caused > writeBurst+6 {
			t.Errorf("other passes each %s: the reports of 10 s caused %d passes", others, queue.caused)
		}
		if queue.changes > writeBurst+6 {
			t.Errorf("other passes each %s: the passes of 10 s saw %d changes", others, queue.changes)
		}
		if _, write := s.store(queue.vm, &vmpb.ReportStateRequest{DoneBytes: reports}); write {
			t.Error("the same report again is written")
		}
	}
}

// passes are the passes of a VM. Like a work queue, it remembers only the earliest requested pass.
type passes struct {
	vm      types.NamespacedName
	service *Service
	clock   *testingclock.FakePassiveClock
	begin   time.Time
	// others is how often something else requests a pass; 0 for never.
	others time.Duration

	next    time.Time // zero if there is none
	caused  int
	changes int
	seen    uint64
}

func (p *passes) report(done uint64) {
	if after, write := p.service.store(p.vm, &vmpb.ReportStateRequest{DoneBytes: done}); write {
		p.request(p.vm, after)
	}
	p.run()
}

func (p *passes) request(_ types.NamespacedName, after time.Duration) {
	if at := p.clock.Now().Add(after); p.next.IsZero() || at.Before(p.next) {
		p.next = at
	}
}

// run makes the pass if it is due.
func (p *passes) run() {
	if !p.next.IsZero() && !p.next.After(p.clock.Now()) {
		p.caused, p.next = p.caused+1, time.Time{}
		p.pass()
	}
}

func (p *passes) pass() {
	p.service.BeginPass(p.vm)
	if done := p.service.reports[p.vm].shown.GetDoneBytes(); done != p.seen {
		p.seen, p.changes = done, p.changes+1
	}
}

// step advances the clock by a millisecond.
func (p *passes) step() {
	p.clock.SetTime(p.clock.Now().Add(time.Millisecond))
	if p.others != 0 && p.clock.Now().Sub(p.begin)%p.others == 0 {
		p.next = time.Time{} // the pass happens now, and the queue drops the later one
		p.pass()
	}
	p.run()
}
