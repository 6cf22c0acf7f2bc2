package service

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/flood"
)

// counting is a cluster in which no token is valid.
type counting struct {
	client.Client
	reviews, reads atomic.Int64
	// objects are the objects by name.
	objects map[string]client.Object
}

func (c *counting) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	c.reviews.Add(1)
	object.(*authenticationv1.TokenReview).Status.Authenticated = false
	return nil
}

func (c *counting) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	c.reads.Add(1)
	switch found := c.objects[key.Name].(type) {
	case *v1alpha1.VirtualMachine:
		found.DeepCopyInto(into.(*v1alpha1.VirtualMachine))
		return nil
	case *corev1.Pod:
		found.DeepCopyInto(into.(*corev1.Pod))
		return nil
	}
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
		// The clock does not advance, so that limits are not refilled.
		Registry:  &authority.Registry{Client: p.cluster, APIReader: p.cluster, Clock: testingclock.NewFakePassiveClock(time.Now())},
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

func (p *port) dial(config *tls.Config, options ...grpc.DialOption) *grpc.ClientConn {
	p.Helper()
	conn, err := grpc.NewClient(p.address, append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))...)
	p.must(err)
	p.Cleanup(func() { conn.Close() })
	return conn
}

// TestServer_LimitsAnonymousConnections checks that silent clients, whose connections are limited, displace each other,
// and that other clients can connect in the meantime, with and without a certificate.
func TestServer_LimitsAnonymousConnections(t *testing.T) {
	p := newPort(t)
	flood.Past(t, p.address, maxAnonymous)
	for name, config := range map[string]*tls.Config{"a hypervisor": p.client(p.certificate(attacker)), "a new hypervisor": p.client()} {
		if len(p.admitted(1, config)) != 1 {
			t.Errorf("there is no connection left for %s", name)
		}
	}
}

// TestServer_ReservesReviewsForPods checks that clients with many addresses, which use up the reviews of tokens, do not
// keep the Pod of a hypervisor from getting its certificate, whatever tokens they send.
func TestServer_ReservesReviewsForPods(t *testing.T) {
	p := newPort(t)
	vm := fixture.VirtualMachine()
	pod := fixture.OwnedBy(vm, fixture.Named("vm-7", fixture.Pod()))
	pod.UID, pod.Labels = "pod-uid", map[string]string{v1alpha1.LabelVM: vm.Name}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "127.0.0.1"}}
	vm.Status.ActivePodName, vm.Status.ActivePodUID = pod.Name, pod.UID
	p.cluster.objects = map[string]client.Object{vm.Name: vm, pod.Name: pod}
	_, request := p.request()
	conns := map[string]*grpc.ClientConn{}
	ask := func(from net.IP, token string) codes.Code {
		conn := conns[from.String()]
		if conn == nil {
			conn = p.dial(p.client(), grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext(ctx, "tcp", address)
			}))
			conns[from.String()] = conn
		}
		_, err := identitypb.NewCertificateAuthorityClient(conn).Issue(t.Context(), &identitypb.IssueRequest{CertificateRequest: request, Token: token})
		return status.Code(err)
	}
	token := unsigned(pod.Namespace, pod.Name, pod.UID)
	refused := codes.OK
	for i := 0; i <= reviewOthers.burst && refused != codes.ResourceExhausted; i++ {
		refused = ask(net.IPv4(127, 1, 0, byte(1+i%40)), []string{"stolen", token}[i%2])
	}
	if refused != codes.ResourceExhausted {
		t.Fatalf("40 addresses got more than %d reviews", reviewOthers.burst)
	}
	if got := ask(net.IPv4(127, 0, 0, 1), "stolen"); got != codes.ResourceExhausted {
		t.Errorf("another token from the Pod's address: %v", got)
	}
	// The cluster accepts no token, so a review ends with Unauthenticated.
	for range reviewPod.burst {
		if got := ask(net.IPv4(127, 0, 0, 1), token); got != codes.Unauthenticated {
			t.Fatalf("the Pod's token from its address: %v", got)
		}
	}
	if got := ask(net.IPv4(127, 0, 0, 1), token); got != codes.ResourceExhausted {
		t.Errorf("one Pod uses more than its part: %v", got)
	}
}

// unsigned returns a token of a Pod without a valid signature.
func unsigned(namespace, pod string, uid types.UID) string {
	claims := fmt.Sprintf(`{"kubernetes.io":{"namespace":%q,"pod":{"name":%q,"uid":%q}}}`, namespace, pod, uid)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

// TestTokenReviewer_RecognizesPods checks which callers count as the Pod that their token names.
func TestTokenReviewer_RecognizesPods(t *testing.T) {
	vm := fixture.VirtualMachine()
	for name, tc := range map[string]struct {
		from   string
		token  func(*corev1.Pod) string
		change func(*corev1.Pod)
		want   bool
	}{
		"its address":         {from: "192.0.2.1", want: true},
		"another of it":       {from: "2001:db8::1", want: true},
		"its host's":          {from: "192.0.2.9", want: true},
		"mapped":              {from: "::ffff:192.0.2.1", want: true},
		"another":             {from: "192.0.2.2"},
		"no address":          {},
		"an earlier Pod":      {from: "192.0.2.1", token: func(pod *corev1.Pod) string { return unsigned(pod.Namespace, pod.Name, "earlier") }},
		"no such Pod":         {from: "192.0.2.1", token: func(pod *corev1.Pod) string { return unsigned(pod.Namespace, "gone", pod.UID) }},
		"not a token":         {from: "192.0.2.1", token: func(*corev1.Pod) string { return "garbage" }},
		"not base64":          {from: "192.0.2.1", token: func(*corev1.Pod) string { return "e30.!.c2ln" }},
		"not JSON":            {from: "192.0.2.1", token: func(*corev1.Pod) string { return "e30.e30x.c2ln" }},
		"a Pod of no VM":      {from: "192.0.2.1", change: func(pod *corev1.Pod) { pod.OwnerReferences = nil }},
		"a Pod that finished": {from: "192.0.2.1", change: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }},
	} {
		t.Run(name, func(t *testing.T) {
			pod := fixture.OwnedBy(vm, fixture.Named("vm-7", fixture.Pod()))
			pod.UID, pod.Labels = "pod-uid", map[string]string{v1alpha1.LabelVM: vm.Name}
			pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}
			pod.Status.HostIPs = []corev1.HostIP{{IP: "192.0.2.9"}}
			if tc.change != nil {
				tc.change(pod)
			}
			token := unsigned(pod.Namespace, pod.Name, pod.UID)
			if tc.token != nil {
				token = tc.token(pod)
			}
			ctx := t.Context()
			if tc.from != "" {
				ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(tc.from), Port: 1}})
			}
			var got types.UID
			reviewer := TokenReviewer{
				Client: &counting{objects: map[string]client.Object{vm.Name: vm, pod.Name: pod}},
				Admit:  func(_ context.Context, pod types.UID) error { got = pod; return errTooMany },
			}
			if _, err := reviewer.Resolve(ctx, token); !errors.Is(err, errTooMany) {
				t.Errorf("error %v", err)
			}
			if is := got == pod.UID; is != tc.want || !is && got != "" {
				t.Errorf("recognized as %q, want the Pod: %t", got, tc.want)
			}
		})
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

// TestLimits_RenewalsAreNotRefusedBecauseOfOthers checks that hypervisors that call as often as they can, whether they have
// leases or not, do not keep others from renewing their leases.
func TestLimits_RenewalsAreNotRefusedBecauseOfOthers(t *testing.T) {
	const vms, every = 200, 20 * time.Second // a third of a minute
	now := testingclock.NewFakePassiveClock(time.Now())
	limits := newLimits(now)
	limits.renewals = func(_ context.Context, vm types.NamespacedName, _ string) float64 {
		if strings.HasPrefix(vm.Name, "locked") {
			return 0
		}
		return 2 / every.Seconds()
	}
	callers := map[string][]context.Context{}
	for i := range vms {
		for _, kind := range []string{"honest", "hostile", "locked"} {
			name := fmt.Sprintf("%s-%d", kind, i)
			callers[kind] = append(callers[kind], as(t, name, name+"-1"))
		}
	}
	const renew, report = vmpb.VMController_RunLease_FullMethodName, vmpb.VMController_ReportState_FullMethodName
	granted := map[string]int{}
	for second := range 60 {
		for i := range vms {
			for range 20 {
				if limits.check(callers["hostile"][i], renew) == nil {
					granted["hostile"]++
				}
				_ = limits.check(callers["hostile"][i], report)
				_ = limits.check(callers["locked"][i], renew)
			}
			if (second+i)%int(every.Seconds()) != 0 {
				continue
			}
			if err := limits.check(callers["honest"][i], renew); err != nil {
				t.Fatalf("after %d s, the renewal of VM %d is refused: %v", second, i, err)
			}
		}
		now.SetTime(now.Now().Add(time.Second))
	}
	if most := vms * (renewalBurst + 60/10); granted["hostile"] > most {
		t.Errorf("hostile hypervisors got %d renewals, want at most %d", granted["hostile"], most)
	}
}

// TestServer_LimitsRenewals checks that a hypervisor that requests its lease all the time reaches the limit of renewals,
// and that its other calls do not count toward that limit.
func TestServer_LimitsRenewals(t *testing.T) {
	p := newPort(t)
	vm := fixture.Named(attacker.VM, fixture.VirtualMachine())
	vm.Status.ActivePodName, vm.Status.ActiveRunID = attacker.Pod, "2" // a later run, so requests write nothing
	vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, DurationSeconds: 60, FencingToken: 1}
	p.cluster.objects = map[string]client.Object{vm.Name: vm}
	us := &vmpb.HypervisorID{Namespace: attacker.Namespace, VmName: attacker.VM, PodName: attacker.Pod, RunId: 1}
	calls := vmpb.NewVMControllerClient(p.dial(p.client(p.certificate(attacker))))
	admitted := 0
	for range 2 * renewalBurst {
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := calls.RunLease(ctx, &vmpb.RunLeaseRequest{Us: us})
		p.must(err)
		if _, err := lease.Recv(); status.Code(err) != codes.ResourceExhausted {
			admitted++
		}
		cancel()
	}
	if admitted != renewalBurst {
		t.Errorf("%d of %d requests for a lease were admitted, want %d", admitted, 2*renewalBurst, renewalBurst)
	}
	if _, err := calls.ReportState(t.Context(), &vmpb.ReportStateRequest{Us: us}); status.Code(err) == codes.ResourceExhausted {
		t.Errorf("a report after that: %v", err)
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
