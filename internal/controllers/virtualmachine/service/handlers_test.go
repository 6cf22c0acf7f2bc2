package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// as returns the context of a call by the hypervisor in a Pod of a VM.
func as(t *testing.T, vm, pod string) context.Context {
	t.Helper()
	uri, err := url.Parse(identity.Peer{Namespace: fixture.Namespace, VM: vm, Pod: pod}.String())
	if err != nil {
		t.Fatal(err)
	}
	state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{URIs: []*url.URL{uri}}}}}
	return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
}

// change changes the stored VM.
func (m *migrating) change(change func(*v1alpha1.VirtualMachine)) {
	m.Helper()
	vm := m.vm()
	change(vm)
	status := vm.Status
	if err := m.Registry.Client.Update(m.Context(), vm); err != nil {
		m.Fatal(err)
	}
	vm.Status = status
	if err := m.Registry.Client.Status().Update(m.Context(), vm); err != nil {
		m.Fatal(err)
	}
}

func (m *migrating) vm() *v1alpha1.VirtualMachine {
	m.Helper()
	vm := &v1alpha1.VirtualMachine{}
	if err := m.Registry.Client.Get(m.Context(), m.key, vm); err != nil {
		m.Fatal(err)
	}
	return vm
}

// TestService_AuthorizesCallers checks that every call requires a complete identity that matches the caller's certificate.
func TestService_AuthorizesCallers(t *testing.T) {
	m := newMigrating(t)
	calls := map[string]func(context.Context, *vmpb.HypervisorID) error{
		"RunLease": func(ctx context.Context, us *vmpb.HypervisorID) error {
			return m.RunLease(&vmpb.RunLeaseRequest{Us: us, Release: true}, stream{ctx: ctx})
		},
		"ReportState": func(ctx context.Context, us *vmpb.HypervisorID) error {
			_, err := m.ReportState(ctx, &vmpb.ReportStateRequest{Us: us})
			return err
		},
		"MigrationSwitchover": func(ctx context.Context, us *vmpb.HypervisorID) error {
			_, err := m.MigrationSwitchover(ctx, &vmpb.MigrationSwitchoverRequest{Us: us, Them: m.source})
			return err
		},
		"EnsureMigrationTarget": func(ctx context.Context, us *vmpb.HypervisorID) error {
			_, err := m.EnsureMigrationTarget(ctx, &vmpb.EnsureMigrationTargetRequest{Us: us})
			return err
		},
	}
	incomplete := map[string]*vmpb.HypervisorID{
		"nothing":      nil,
		"no VM":        {Namespace: m.key.Namespace, PodName: "vm-1", RunId: 1},
		"no namespace": {VmName: "vm", PodName: "vm-1", RunId: 1},
		"no Pod":       {Namespace: m.key.Namespace, VmName: "vm", RunId: 1},
		"no run":       {Namespace: m.key.Namespace, VmName: "vm", PodName: "vm-1"},
	}
	for name, call := range calls {
		for what, us := range incomplete {
			if err := call(as(t, "vm", "vm-1"), us); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s with %s: %v", name, what, err)
			}
		}
		if err := call(as(t, "vm", "vm-2"), m.source); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s by another Pod: %v", name, err)
		}
		if err := call(as(t, "other", "vm-1"), m.source); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s by another VM: %v", name, err)
		}
		if err := call(t.Context(), m.source); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s without a certificate: %v", name, err)
		}
	}
	// The caller also names the other process of a switchover.
	for what, them := range incomplete {
		if _, err := m.MigrationSwitchover(as(t, "vm", "vm-1"), &vmpb.MigrationSwitchoverRequest{Us: m.source, Them: them}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a switchover from %s: %v", what, err)
		}
	}
	them := &vmpb.HypervisorID{Namespace: m.key.Namespace, VmName: "other", PodName: "vm-1", RunId: 1}
	if _, err := m.MigrationSwitchover(as(t, "vm", "vm-1"), &vmpb.MigrationSwitchoverRequest{Us: m.source, Them: them}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a switchover from another VM: %v", err)
	}
}

// stream forwards the updates of a run lease.
type stream struct {
	grpc.ServerStreamingServer[vmpb.RunLeaseUpdate]
	ctx     context.Context
	updates chan *vmpb.RunLeaseUpdate
}

func (s stream) Context() context.Context { return s.ctx }

func (s stream) Send(update *vmpb.RunLeaseUpdate) error {
	s.updates <- update
	return nil
}

// runLease opens a run lease, and returns its updates and a function that closes it.
func (m *migrating) runLease(pod string) (updates chan *vmpb.RunLeaseUpdate, end func() error) {
	m.Helper()
	ctx, cancel := context.WithCancel(as(m.T, "vm", pod))
	updates, ended := make(chan *vmpb.RunLeaseUpdate), make(chan error, 1)
	go func() {
		ended <- m.RunLease(&vmpb.RunLeaseRequest{Us: m.process(pod)}, stream{ctx: ctx, updates: updates})
	}()
	return updates, func() error {
		cancel()
		return <-ended
	}
}

// TestRunLease checks the updates in the course of a run lease.
func TestRunLease(t *testing.T) {
	m := newMigrating(t)
	updates, end := m.runLease("vm-1")
	if first := <-updates; first.GetStatus() != vmpb.RunLeaseUpdate_STATUS_OK || !first.GetMigrate() {
		t.Errorf("at first: %v", first)
	}
	if !m.HasLease(m.key, "vm-1") || m.HasLease(m.key, "vm-2") {
		t.Error("the run lease is not that of vm-1")
	}
	m.Recheck(m.key) // nothing has changed, so nothing is sent
	m.change(func(vm *v1alpha1.VirtualMachine) { vm.Spec.Mode = v1alpha1.ModePause })
	m.Recheck(m.key)
	if next := <-updates; !next.GetPaused() {
		t.Errorf("for the pause: %v", next)
	}
	m.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.ActivePodName = "vm-9" })
	m.Recheck(m.key)
	if last := <-updates; last.GetStatus() != vmpb.RunLeaseUpdate_STATUS_TERMINATE {
		t.Errorf("after the VM was moved: %v", last)
	}
	if err := end(); status.Code(err) != codes.Canceled || m.HasLease(m.key, "vm-1") || len(m.leases) > 0 {
		t.Errorf("the lease ended with %v", err)
	}
	if granted := m.LastGrant(m.key); !granted.IsZero() {
		t.Errorf("a lease that does not expire was recorded as granted at %v", granted)
	}
}

// TestRunLease_Migrate checks that a hypervisor is ordered to migrate only if it can.
func TestRunLease_Migrate(t *testing.T) {
	m := newMigrating(t)
	m.store(m.key, &vmpb.ReportStateRequest{Us: m.source, State: vmpb.ReportStateRequest_STATE_RUNNING})
	updates, end := m.runLease("vm-1")
	if first := <-updates; first.GetMigrate() {
		t.Errorf("at first: %v", first)
	}
	_ = end()
}

// TestRunLease_Heard checks that the time at which a lease that expires was granted is recorded, also if the holder
// gets the lease later.
func TestRunLease_Heard(t *testing.T) {
	m := newMigrating(t)
	m.change(func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.DiskAccess = v1alpha1.DiskAccessServed
		vm.Status.DiskServer = &v1alpha1.DiskServerStatus{PodName: "vm-disks", RevokedToken: 7}
		vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, DurationSeconds: 20, FencingToken: 10}
	})
	m.Disks = func(_ types.NamespacedName, pod string, token uint64) *vmpb.DiskServer {
		if token != 10 {
			return nil
		}
		return &vmpb.DiskServer{Pod: pod}
	}
	updates, end := m.runLease("vm-1")
	if first := <-updates; first.GetValidFor() != nil || first.GetFencingToken() != 10 || first.GetDiskServer().GetPod() != "vm-1" || !m.LastGrant(m.key).IsZero() {
		t.Errorf("before the revocation: %v", first)
	}
	m.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.DiskServer.RevokedToken = 9 })
	m.Recheck(m.key)
	if next := <-updates; next.GetValidFor().AsDuration() != 20*time.Second || time.Since(m.LastGrant(m.key)) > time.Minute {
		t.Errorf("after the revocation: %v", next)
	}
	m.Recheck(m.key)
	_ = end()
	if err := m.RunLease(&vmpb.RunLeaseRequest{Us: m.source, Release: true}, stream{ctx: as(t, "vm", "vm-1")}); err != nil || m.vm().Status.Lease.State != v1alpha1.LeaseReleased {
		t.Errorf("the release: %v, and %+v is stored", err, m.vm().Status.Lease)
	}
	if err := m.RunLease(&vmpb.RunLeaseRequest{Us: m.process("vm-2"), Release: true}, stream{ctx: as(t, "vm", "vm-2")}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the release by another Pod: %v", err)
	}
}

// TestReport checks which reports are accepted, and which of them the VM's status shows.
func TestReport(t *testing.T) {
	m := newMigrating(t)
	const running, waiting = vmpb.ReportStateRequest_STATE_RUNNING, vmpb.ReportStateRequest_STATE_WAITING
	for name, test := range map[string]struct {
		pod   string
		run   uint64
		state vmpb.ReportStateRequest_State
		cause vmpb.ReportStateRequest_Cause
		want  codes.Code
		shown bool
	}{
		"the hypervisor":                     {"vm-1", 1, running, 0, codes.OK, true},
		"without a state":                    {"vm-1", 1, 0, 0, codes.OK, false},
		"the next process waits for a disk":  {"vm-1", 2, waiting, vmpb.ReportStateRequest_CAUSE_DISK_LOCKED, codes.OK, true},
		"the next process runs":              {"vm-1", 2, running, 0, codes.FailedPrecondition, false},
		"an earlier process waits":           {"vm-1", 0, waiting, vmpb.ReportStateRequest_CAUSE_DISK_LOCKED, codes.InvalidArgument, false},
		"a process of another Pod":           {"vm-3", 1, running, 0, codes.FailedPrecondition, false},
		"a process of another Pod waits":     {"vm-3", 1, waiting, vmpb.ReportStateRequest_CAUSE_DISK_LOCKED, codes.FailedPrecondition, false},
		"the target, as if it had the guest": {"vm-2", 1, running, 0, codes.FailedPrecondition, false},
	} {
		t.Run(name, func(t *testing.T) {
			m.Forget(m.key)
			us := &vmpb.HypervisorID{Namespace: m.key.Namespace, VmName: m.key.Name, PodName: test.pod, RunId: test.run}
			_, err := m.ReportState(as(t, "vm", test.pod), &vmpb.ReportStateRequest{Us: us, State: test.state, Cause: test.cause})
			if status.Code(err) != test.want || (m.Report(m.vm()) != nil) != test.shown {
				t.Errorf("%v, and the report %v is shown", err, m.Report(m.vm()))
			}
		})
	}
	m.Forget(m.key)
	if _, err := m.ReportState(as(t, "vm", "vm-1"), &vmpb.ReportStateRequest{Us: m.source, State: running}); err != nil {
		t.Fatal(err)
	}
	m.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.ActiveRunID = "" })
	if m.Report(m.vm()) != nil {
		t.Error("the report of a process that runs the guest without authority is shown")
	}
	m.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.ActiveRunID = "1" })
	next := &vmpb.HypervisorID{Namespace: m.key.Namespace, VmName: m.key.Name, PodName: "vm-1", RunId: 2}
	if _, err := m.ReportState(as(t, "vm", "vm-1"), &vmpb.ReportStateRequest{Us: next, State: waiting, Cause: vmpb.ReportStateRequest_CAUSE_DISK_LOCKED}); err != nil || m.Report(m.vm()) == nil {
		t.Fatal(err)
	}
	m.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.ActivePodName = "vm-9" })
	if m.Report(m.vm()) != nil {
		t.Error("the report of a process that waits in another Pod is shown")
	}
}

// TestReport_Downtime checks that the downtime of a migration is the time between the last report of the source and the
// first report of the target.
func TestReport_Downtime(t *testing.T) {
	const stopped, done = vmpb.ReportStateRequest_Migration_PHASE_STOPPED, vmpb.ReportStateRequest_Migration_PHASE_DONE
	known, now := &reported{}, time.Now()
	for _, step := range []struct {
		what, pod, to string
		phase         vmpb.ReportStateRequest_Migration_Phase
		own, want     time.Duration
	}{
		{"the source stops", "vm-1", "vm-2", stopped, 0, 0},
		{"it reports that again", "vm-1", "vm-2", stopped, 0, 0},
		{"another Pod has the guest", "vm-3", "", done, 0, 0},
		{"the target has the guest", "vm-2", "", done, 0, 3 * time.Second},
		{"it reports that again", "vm-2", "", done, 0, 3 * time.Second},
		{"it has measured the downtime itself", "vm-2", "", done, time.Minute, time.Minute},
		{"the target migrates again", "vm-2", "vm-4", stopped, 0, 0},
		{"the next target has the guest", "vm-4", "", done, 0, time.Second},
	} {
		news := &vmpb.ReportStateRequest_Migration{Phase: step.phase, TargetPod: step.to}
		if step.own > 0 {
			news.Downtime = durationpb.New(step.own)
		}
		known.measure(&vmpb.ReportStateRequest{Us: &vmpb.HypervisorID{PodName: step.pod}, Migration: news}, now)
		if got := news.GetDowntime().AsDuration(); got != step.want {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
		now = now.Add(time.Second)
	}
}

// TestService_IssuesCredentials checks that the certificate of another authority is used if there is one.
func TestService_IssuesCredentials(t *testing.T) {
	own := identity.FromFiles(identity.Files{}, identity.Controller(), nil, nil)
	if got := (&Options{Identity: own}).credentials(); got != own {
		t.Error("the credentials are not those of Identity")
	}
}

// TestReport_OfAServer checks that the report of a disk server is used only while its Pod serves the disks.
func TestReport_OfAServer(t *testing.T) {
	m := newMigrating(t)
	passes := 0
	m.Enqueue = func(types.NamespacedName, time.Duration) { passes++ }
	m.change(func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.DiskAccess = v1alpha1.DiskAccessServed
		vm.Status.DiskServer = &v1alpha1.DiskServerStatus{PodName: "vm-disks"}
	})
	report := &vmpb.ReportStateRequest{Us: m.process("vm-disks"), State: vmpb.ReportStateRequest_STATE_PREPARING, DoneBytes: 1, Sequence: 2}
	for _, step := range []struct {
		what   string
		change func(*vmpb.ReportStateRequest)
		passes int
		done   uint64 // shown
	}{
		{"the first", func(*vmpb.ReportStateRequest) {}, 1, 1},
		{"the same", func(*vmpb.ReportStateRequest) {}, 1, 1},
		{"progress", func(r *vmpb.ReportStateRequest) { r.DoneBytes, r.Sequence = 2, 3 }, 1, 2},
		{"a late report", func(r *vmpb.ReportStateRequest) { r.DoneBytes, r.Sequence = 9, 1 }, 1, 2},
		{"a change", func(r *vmpb.ReportStateRequest) {
			r.State, r.Endpoint, r.DoneBytes, r.Sequence = vmpb.ReportStateRequest_STATE_RUNNING, "10.0.0.1:1", 3, 4
		}, 2, 3},
	} {
		next := &vmpb.ReportStateRequest{Us: report.GetUs(), State: report.GetState(), DoneBytes: report.GetDoneBytes(), Sequence: report.GetSequence()}
		step.change(next)
		if _, err := m.ReportState(as(t, "vm", "vm-disks"), next); err != nil || passes != step.passes || m.DiskServer(m.vm()).GetDoneBytes() != step.done {
			t.Errorf("%s: %v, %d passes, and %v is shown", step.what, err, passes, m.DiskServer(m.vm()))
		}
	}
	m.change(func(vm *v1alpha1.VirtualMachine) { vm.Status.DiskServer.PodName = "vm-disks-2" })
	if m.DiskServer(m.vm()) != nil {
		t.Error("the report of an earlier server is shown")
	}
}

// reviewing is a cluster that returns a fixed TokenReview status.
type reviewing struct {
	client.Client
	status authenticationv1.TokenReviewStatus
}

func (r reviewing) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	object.(*authenticationv1.TokenReview).Status = r.status
	return nil
}

// TestTokenReviewer checks which tokens are accepted as those of a hypervisor.
func TestTokenReviewer(t *testing.T) {
	type changes struct {
		review func(*authenticationv1.TokenReviewStatus)
		pod    func(*corev1.Pod)
		uid    types.UID // of the Pod in the status of the VM; that of the Pod if empty
	}
	for name, test := range map[string]struct {
		changes
		want codes.Code
	}{
		"a hypervisor":      {changes{}, codes.OK},
		"not authenticated": {changes{review: func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }}, codes.Unauthenticated},
		"another audience":  {changes{review: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"other"} }}, codes.Unauthenticated},
		"a user":            {changes{review: func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:node:a:b" }}, codes.Unauthenticated},
		"not a service account": {changes{review: func(s *authenticationv1.TokenReviewStatus) {
			s.User.Username = "x:serviceaccount:" + fixture.Namespace + ":a"
		}}, codes.Unauthenticated},
		"a short name":                        {changes{review: func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount:a" }}, codes.Unauthenticated},
		"no Pod":                              {changes{review: func(s *authenticationv1.TokenReviewStatus) { delete(s.User.Extra, extraPodName) }}, codes.Unauthenticated},
		"no UID":                              {changes{review: func(s *authenticationv1.TokenReviewStatus) { delete(s.User.Extra, extraPodUID) }}, codes.Unauthenticated},
		"an earlier Pod":                      {changes{review: func(s *authenticationv1.TokenReviewStatus) { s.User.Extra[extraPodUID] = []string{"earlier"} }}, codes.PermissionDenied},
		"a Pod that is gone":                  {changes{review: func(s *authenticationv1.TokenReviewStatus) { s.User.Extra[extraPodName] = []string{"gone"} }}, codes.PermissionDenied},
		"a Pod that finished":                 {changes{pod: func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }}, codes.PermissionDenied},
		"no owner":                            {changes{pod: func(pod *corev1.Pod) { pod.OwnerReferences = nil }}, codes.PermissionDenied},
		"another label":                       {changes{pod: func(pod *corev1.Pod) { pod.Labels[v1alpha1.LabelVM] = "other" }}, codes.PermissionDenied},
		"a VM that is gone":                   {changes{pod: func(pod *corev1.Pod) { pod.Labels[v1alpha1.LabelVM], pod.OwnerReferences[0].Name = "gone", "gone" }}, codes.PermissionDenied},
		"a Pod that the status does not have": {changes{uid: "another"}, codes.PermissionDenied},
		"an earlier VM":                       {changes{pod: func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = "earlier" }}, codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMigrating(t)
			cluster := m.Registry.Client
			pod := fixture.OwnedBy(fixture.VirtualMachine(), fixture.Named("vm-7", fixture.Pod()))
			pod.Labels = map[string]string{v1alpha1.LabelVM: "vm"}
			if test.pod != nil {
				test.pod(pod)
			}
			if err := cluster.Create(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			m.change(func(vm *v1alpha1.VirtualMachine) {
				vm.Status.ActivePodName, vm.Status.ActivePodUID = pod.Name, cmp.Or(test.uid, pod.UID)
			})
			reviewed := authenticationv1.TokenReviewStatus{
				Authenticated: true, Audiences: []string{vmpb.TokenAudience},
				User: authenticationv1.UserInfo{Username: "system:serviceaccount:" + fixture.Namespace + ":default", Extra: map[string]authenticationv1.ExtraValue{
					extraPodName: {"vm-7"}, extraPodUID: {string(pod.UID)},
				}},
			}
			if test.review != nil {
				test.review(&reviewed)
			}
			reviewer := TokenReviewer{Client: reviewing{cluster, reviewed}, APIReader: cluster}
			got, err := reviewer.Resolve(t.Context(), "token")
			if status.Code(err) != test.want || err == nil && got != (identity.Peer{Namespace: fixture.Namespace, VM: "vm", Pod: "vm-7"}) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
