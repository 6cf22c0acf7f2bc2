package authority

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// env is a registry with a fake API server, which has the virtual machine "vm" and its Pods vm-1, vm-2 and gone-1.
// Run 5 of the hypervisor in vm-1 has the authority.
type env struct {
	*Registry
	live   client.WithWatch
	writes int
	fail   func() error // returns the error of the next write; nil if it succeeds
}

// setup changes the objects before an env is created.
type setup func(vm *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod)

// newEnv returns an env. cached changes the VM in the cache; if nil, the cache is up to date.
func newEnv(t *testing.T, given setup, cached func(*v1alpha1.VirtualMachine)) *env {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	vm := fixture.VirtualMachine()
	vm.Status.VirtualMachineAuthority = v1alpha1.VirtualMachineAuthority{ActivePodName: "vm-1", ActivePodUID: "uid", ActiveRunID: "5", VolumeClaimName: "disk-1"}
	pods := map[string]*corev1.Pod{}
	for name, claim := range map[string]string{"vm-1": "disk-1", "vm-2": "disk-2"} {
		pods[name] = fixture.OwnedBy(vm, fixture.Named(name, fixture.Pod()))
		pods[name].Spec.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	}
	if given != nil {
		given(vm, pods)
	}
	objects := []client.Object{vm}
	for _, pod := range pods {
		objects = append(objects, pod)
	}
	w := &env{live: fakeclient.NewBuilder(scheme).WithObjects(objects...).WithStatusSubresource(vm).Build()}
	w.Registry = &Registry{APIReader: w.live, Clock: testingclock.NewFakePassiveClock(now), Client: interceptor.NewClient(w.live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, object, opts...)
			if vm, is := object.(*v1alpha1.VirtualMachine); is && err == nil && cached != nil {
				cached(vm)
			}
			return err
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			w.writes++
			if w.fail != nil {
				if err := w.fail(); err != nil {
					return err
				}
			}
			return c.SubResource(sub).Patch(ctx, object, patch, opts...)
		},
	})}
	return w
}

// status returns the stored status of the VM.
func (w *env) status(t *testing.T) *v1alpha1.VirtualMachineStatus {
	t.Helper()
	vm := &v1alpha1.VirtualMachine{}
	if err := w.live.Get(t.Context(), client.ObjectKeyFromObject(fixture.VirtualMachine()), vm); err != nil {
		t.Fatal(err)
	}
	return &vm.Status
}

// process returns the identity of a hypervisor of the VM.
func process(pod string, run uint64) *vmpb.HypervisorID {
	return &vmpb.HypervisorID{Namespace: fixture.Namespace, VmName: "vm", PodName: pod, RunId: run}
}

// all combines setups.
func all(setups ...setup) setup {
	return func(vm *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) {
		for _, given := range setups {
			given(vm, pods)
		}
	}
}

func deleting(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
	vm.DeletionTimestamp, vm.Finalizers = &metav1.Time{Time: now}, []string{v1alpha1.Finalizer}
}

// deletingFor sets when the deletion was requested.
func deletingFor(d time.Duration) setup {
	return func(vm *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) {
		deleting(vm, pods)
		vm.DeletionTimestamp.Time = now.Add(-d)
	}
}

func noAuthority(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
	vm.Status.VirtualMachineAuthority = v1alpha1.VirtualMachineAuthority{}
}

// leased gives the VM a lease in a state, with fencing token 100.
func leased(state v1alpha1.LeaseState) setup {
	return func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Spec.LeaseMode = v1alpha1.LeaseFullLeases
		vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: state, DurationSeconds: 20, FencingToken: 100, Transitions: 3}
	}
}

// servedUpTo gives the VM a disk server that has revoked all tokens up to a token.
func servedUpTo(revoked int64) setup {
	return func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Spec.DiskAccess = v1alpha1.DiskAccessServed
		vm.Status.DiskServer = &v1alpha1.DiskServerStatus{PodName: "vm-disks-1", RevokedToken: revoked}
	}
}

// migrating gives the VM a migration from vm-1 to vm-2.
func migrating(phase v1alpha1.MigrationPhase) setup {
	return func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Status.Migration = &v1alpha1.VirtualMachineMigration{
			Phase: phase, SourcePodName: "vm-1", TargetPodName: "vm-2", TargetVolumeClaimName: "disk-2", TargetFencingToken: 200,
		}
	}
}

// ordered requests a migration from vm-1.
func ordered(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
	vm.Annotations = map[string]string{v1alpha1.AnnotationMigrate: "vm-1"}
}

func finished(pod string) setup {
	return func(_ *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) {
		pods[pod].Status.Phase = corev1.PodFailed
	}
}

func foreign(pod string) setup {
	return func(_ *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) {
		pods[pod].OwnerReferences[0].UID = "another"
	}
}

func noPod(pod string) setup {
	return func(_ *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) { delete(pods, pod) }
}

const (
	ok        = vmpb.RunLeaseUpdate_STATUS_OK
	terminate = vmpb.RunLeaseUpdate_STATUS_TERMINATE
	unknown   = vmpb.RunLeaseUpdate_STATUS_UNKNOWN
)

func TestRegistry_Lease(t *testing.T) {
	valid := durationpb.New(20 * time.Second)
	paused := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) { vm.Spec.Mode = v1alpha1.ModePause }
	growing := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Status.GrowDisks = []v1alpha1.DiskSize{{Name: "logs", Bytes: 7}}
	}
	noRun := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) { vm.Status.ActiveRunID = "" }
	for name, test := range map[string]struct {
		given  setup
		cached func(*v1alpha1.VirtualMachine)
		us     *vmpb.HypervisorID
		want   *vmpb.RunLeaseUpdate
		run    string // stored; empty if it is 5
	}{
		"the holder":                         {us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok}},
		"the holder, paused":                 {given: paused, us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, Paused: true}},
		"the holder, migration requested":    {given: ordered, us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, Migrate: true}},
		"the holder, growing":                {given: growing, us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, Grow: []*vmpb.DiskSize{{Name: "logs", Bytes: 7}}}},
		"the next process":                   {us: process("vm-1", 6), want: &vmpb.RunLeaseUpdate{Status: ok}, run: "6"},
		"an earlier process":                 {us: process("vm-1", 4), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"a process in another Pod":           {us: process("vm-2", 9), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"being deleted":                      {given: deleting, us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok}},
		"being deleted, with a lease":        {given: all(deleting, leased(v1alpha1.LeaseOpen)), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, FencingToken: 100, ValidFor: valid}},
		"being deleted, last second":         {given: deletingFor(29 * time.Second), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok}},
		"being deleted for too long":         {given: deletingFor(30 * time.Second), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"being deleted, next process":        {given: deleting, us: process("vm-1", 6), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"being deleted, the target":          {given: all(migrating(v1alpha1.MigrationPreparing), ordered, deleting), us: process("vm-2", 1), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"being deleted, no authority":        {given: all(noAuthority, deleting), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"no authority":                       {given: noAuthority, us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: unknown}},
		"no authority, finished":             {given: all(noAuthority, finished("vm-1")), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"no authority, Pod of another VM":    {given: all(noAuthority, foreign("vm-1")), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"no authority, no Pod":               {given: all(noAuthority, noPod("vm-1")), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"the target":                         {given: all(migrating(v1alpha1.MigrationPreparing), ordered), us: process("vm-2", 1), want: &vmpb.RunLeaseUpdate{Status: ok, FencingToken: 200}},
		"the target of a failed migration":   {given: migrating(v1alpha1.MigrationFailed), us: process("vm-2", 1), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"a lease":                            {given: all(leased(v1alpha1.LeaseOpen), ordered, growing, paused), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, Paused: true, Migrate: true, FencingToken: 100, ValidFor: valid, Grow: []*vmpb.DiskSize{{Name: "logs", Bytes: 7}}}},
		"a lease, next process":              {given: leased(v1alpha1.LeaseOpen), us: process("vm-1", 6), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"a lease, first process":             {given: all(leased(v1alpha1.LeaseOpen), noRun), us: process("vm-1", 6), want: &vmpb.RunLeaseUpdate{Status: ok, FencingToken: 100, ValidFor: valid}, run: "6"},
		"a suspected lease":                  {given: leased(v1alpha1.LeaseSuspected), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, FencingToken: 100, ValidFor: valid}},
		"a revoked lease":                    {given: leased(v1alpha1.LeaseRevoked), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"disks not revoked":                  {given: all(leased(v1alpha1.LeaseOpen), servedUpTo(98)), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, FencingToken: 100}},
		"disks open":                         {given: all(leased(v1alpha1.LeaseOpen), servedUpTo(99)), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, FencingToken: 100, ValidFor: valid}},
		"disks revoked":                      {given: all(leased(v1alpha1.LeaseOpen), servedUpTo(100)), us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: terminate}},
		"an outdated cache":                  {cached: func(vm *v1alpha1.VirtualMachine) { vm.Status.ActivePodName = "vm-0" }, us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok}},
		"an outdated revocation":             {given: leased(v1alpha1.LeaseOpen), cached: func(vm *v1alpha1.VirtualMachine) { vm.Status.Lease.State = v1alpha1.LeaseRevoked }, us: process("vm-1", 5), want: &vmpb.RunLeaseUpdate{Status: ok, FencingToken: 100, ValidFor: valid}},
		"outdated cache with an earlier run": {cached: func(vm *v1alpha1.VirtualMachine) { vm.Status.ActiveRunID = "1" }, us: process("vm-1", 4), want: &vmpb.RunLeaseUpdate{Status: terminate}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, test.cached)
			got, err := w.Lease(t.Context(), test.us, false)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("the update differs (-want +got):\n%s", diff)
			}
			want := cmp.Or(test.run, "5")
			if is := w.status(t); is.ActivePodName == "" {
				want = ""
			}
			if is := w.status(t).ActiveRunID; is != want {
				t.Errorf("the run %q is stored, want %q", is, want)
			}
		})
	}
}

// TestRegistry_LeaseIsReopened checks that a suspected holder gets its lease only after the API server has stored
// that the lease is open again.
func TestRegistry_LeaseIsReopened(t *testing.T) {
	w := newEnv(t, leased(v1alpha1.LeaseSuspected), nil)
	if _, err := w.Lease(t.Context(), process("vm-1", 5), false); err != nil || w.writes > 0 {
		t.Fatalf("an update without a request made %d writes, %v", w.writes, err)
	}
	if _, err := w.Lease(t.Context(), process("vm-1", 5), true); err != nil {
		t.Fatal(err)
	}
	if is := w.status(t).Lease; is.State != v1alpha1.LeaseOpen || is.Transitions != 4 || !is.TransitionTime.Time.Equal(now) {
		t.Errorf("the lease is %+v", is)
	}
}

func TestRegistry_SwitchOver(t *testing.T) {
	preparing := migrating(v1alpha1.MigrationPreparing)
	returned := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Status.Migration = &v1alpha1.VirtualMachineMigration{Phase: v1alpha1.MigrationFailed, SourcePodName: "vm-1", TargetPodName: "vm-2"}
	}
	for name, test := range map[string]struct {
		given    setup
		us, them *vmpb.HypervisorID
		want     error
		claim    string // stored
		token    int64  // of the lease; 0 if there is none
		writes   int
	}{
		"to the target":                    {given: preparing, us: process("vm-2", 1), them: process("vm-1", 5), claim: "disk-2", writes: 1},
		"to the target, with a lease":      {given: all(preparing, leased(v1alpha1.LeaseOpen)), us: process("vm-2", 1), them: process("vm-1", 5), claim: "disk-2", token: 200, writes: 1},
		"to the target, with served disks": {given: all(preparing, leased(v1alpha1.LeaseOpen), servedUpTo(99)), us: process("vm-2", 1), them: process("vm-1", 5), claim: "disk-1", token: 200, writes: 1},
		"to the target, with an old token": {given: all(preparing, leased(v1alpha1.LeaseOpen), func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
			vm.Status.Lease.FencingToken = 2 * now.UnixMilli()
		}), us: process("vm-2", 1), them: process("vm-1", 5), claim: "disk-2", token: 2*now.UnixMilli() + 1, writes: 1},
		"a repeated call":                   {given: preparing, us: process("vm-1", 5), them: process("vm-2", 1), claim: "disk-1"},
		"after the migration failed":        {given: migrating(v1alpha1.MigrationFailed), us: process("vm-2", 1), them: process("vm-1", 5), want: ErrNotAuthoritative},
		"to another Pod":                    {given: preparing, us: process("vm-3", 1), them: process("vm-1", 5), want: ErrNotAuthoritative},
		"from another process":              {given: preparing, us: process("vm-2", 1), them: process("vm-1", 4), want: ErrNotAuthoritative},
		"VM is being deleted":               {given: all(preparing, deleting), us: process("vm-2", 1), them: process("vm-1", 5), want: ErrNotAuthoritative},
		"VM does not exist":                 {us: &vmpb.HypervisorID{Namespace: fixture.Namespace, VmName: "other", PodName: "vm-2", RunId: 1}, them: process("vm-1", 5), want: ErrNotAuthoritative},
		"to a Pod that has finished":        {given: all(preparing, finished("vm-2")), us: process("vm-2", 1), them: process("vm-1", 5), want: ErrPodEnded},
		"to a Pod of another object":        {given: all(preparing, foreign("vm-2")), us: process("vm-2", 1), them: process("vm-1", 5), want: ErrPodEnded},
		"to a Pod that is gone":             {given: all(preparing, noPod("vm-2")), us: process("vm-2", 1), them: process("vm-1", 5), want: ErrPodEnded},
		"to the next process":               {us: process("vm-1", 6), them: process("vm-1", 5), claim: "disk-1", writes: 1},
		"to an earlier process":             {us: process("vm-1", 4), them: process("vm-1", 5), want: ErrEarlierRun},
		"to the next process, with a lease": {given: leased(v1alpha1.LeaseOpen), us: process("vm-1", 6), them: process("vm-1", 5), want: ErrNotAuthoritative},
		"to the next process, with a lease, after a migration of another Pod": {given: all(leased(v1alpha1.LeaseOpen), func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
			vm.Status.Migration = &v1alpha1.VirtualMachineMigration{Phase: v1alpha1.MigrationSucceeded, SourcePodName: "vm-0", TargetPodName: "vm-1"}
		}), us: process("vm-1", 6), them: process("vm-1", 5), want: ErrNotAuthoritative},
		"back, with a lease": {given: all(leased(v1alpha1.LeaseOpen), returned), us: process("vm-1", 6), them: process("vm-1", 5), claim: "disk-1", token: now.UnixMilli(), writes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, nil)
			if err := w.SwitchOver(t.Context(), test.us, test.them); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Fatalf("the error is %v, want %v", err, test.want)
			}
			if w.writes != test.writes {
				t.Errorf("%d writes, want %d", w.writes, test.writes)
			}
			if test.want != nil {
				return
			}
			is := w.status(t)
			if is.ActivePodName != test.us.GetPodName() || is.ActiveRunID != runID(test.us) || is.VolumeClaimName != test.claim {
				t.Errorf("the authority is %+v, want run %d in %s with %s", is.VirtualMachineAuthority, test.us.GetRunId(), test.us.GetPodName(), test.claim)
			}
			wantOpenLease(t, is.Lease, test.token)
			if test.us.GetPodName() == "vm-2" && is.Migration.Phase != v1alpha1.MigrationSucceeded {
				t.Errorf("the migration is %s", is.Migration.Phase)
			}
		})
	}
}

// wantOpenLease checks that a lease is open with a fencing token, or that there is no lease if the token is 0.
func wantOpenLease(t *testing.T, lease *v1alpha1.VirtualMachineLease, token int64) {
	t.Helper()
	if (lease != nil) != (token != 0) || lease != nil && (lease.FencingToken != token || lease.State != v1alpha1.LeaseOpen || lease.Transitions != 4) {
		t.Errorf("the lease is %+v, want token %d", lease, token)
	}
}

func TestRegistry_Release(t *testing.T) {
	for name, test := range map[string]struct {
		given  setup
		us     *vmpb.HypervisorID
		want   error
		writes int
	}{
		"the holder":      {leased(v1alpha1.LeaseOpen), process("vm-1", 5), nil, 1},
		"a repeated call": {leased(v1alpha1.LeaseReleased), process("vm-1", 5), nil, 0},
		"another process": {leased(v1alpha1.LeaseOpen), process("vm-1", 6), ErrNotAuthoritative, 0},
		"another Pod":     {leased(v1alpha1.LeaseOpen), process("vm-2", 5), ErrNotAuthoritative, 0},
		"no lease":        {nil, process("vm-1", 5), ErrNotAuthoritative, 0},
		"no VM":           {nil, &vmpb.HypervisorID{Namespace: fixture.Namespace, VmName: "other", PodName: "vm-1", RunId: 5}, ErrNotAuthoritative, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, nil)
			if err := w.Release(t.Context(), test.us); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Fatalf("the error is %v, want %v", err, test.want)
			}
			if is := w.status(t).Lease; w.writes != test.writes || test.want == nil && is.State != v1alpha1.LeaseReleased {
				t.Errorf("%d writes, and the lease is %+v", w.writes, is)
			}
		})
	}
}

// TestRegistry_ConfirmStoresDisks checks that the status records which disks are complete before their hypervisor may
// continue.
func TestRegistry_ConfirmStoresDisks(t *testing.T) {
	noImage := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) { vm.Spec.InitialImage = nil }
	withData := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Status.DataDisks = []v1alpha1.DataDiskStatus{{Name: "logs", VolumeClaimName: "vm-logs"}}
	}
	withImage := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) { vm.Status.ImagePrepared = true }
	prepared := &vmpb.ReportStateRequest{ImagePrepared: true}
	data := &vmpb.ReportStateRequest{Disks: []*vmpb.DiskSize{{Name: "logs", Bytes: 1}}}
	both := &vmpb.ReportStateRequest{ImagePrepared: true, Disks: data.GetDisks()}
	for name, test := range map[string]struct {
		given          setup
		cached         func(*v1alpha1.VirtualMachine)
		us             *vmpb.HypervisorID
		report         *vmpb.ReportStateRequest
		want           error
		prepared, data bool
	}{
		"nothing":   {us: process("vm-1", 5)},
		"the image": {us: process("vm-1", 5), report: prepared, prepared: true},
		"the image, which the spec does not have": {given: noImage, us: process("vm-1", 5), report: prepared},
		"a data disk":                 {given: withData, us: process("vm-1", 5), report: data, data: true},
		"a data disk after the image": {given: all(withData, withImage), us: process("vm-1", 5), report: data, prepared: true, data: true},
		"a data disk and the image, which the spec does not have": {given: all(withData, noImage), us: process("vm-1", 5), report: both, data: true},
		"an outdated cache": {cached: func(vm *v1alpha1.VirtualMachine) { vm.Status.ActivePodName = "vm-0" }, us: process("vm-1", 5)},
		"another process":   {us: process("vm-1", 6), report: prepared, want: ErrNotAuthoritative},
		"no VM":             {us: &vmpb.HypervisorID{Namespace: fixture.Namespace, VmName: "other", PodName: "vm-1", RunId: 5}, want: ErrNotAuthoritative},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, test.cached)
			if err := w.Confirm(t.Context(), test.us, test.report); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Fatalf("the error is %v, want %v", err, test.want)
			}
			is := w.status(t)
			data := len(is.DataDisks) == 1 && is.DataDisks[0].Prepared
			if is.ImagePrepared != test.prepared || data != test.data {
				t.Errorf("stored: image %t, data disk %t; want %t and %t", is.ImagePrepared, data, test.prepared, test.data)
			}
		})
	}
}

func TestRegistry_ConfirmProcesses(t *testing.T) {
	target := migrating(v1alpha1.MigrationCopying)
	behind := func(vm *v1alpha1.VirtualMachine) { vm.Status.Migration, vm.Status.DiskServer = nil, nil }
	next := func(w *env, us *vmpb.HypervisorID) error { return w.ConfirmNext(context.Background(), us) }
	isTarget := func(w *env, us *vmpb.HypervisorID) error { return w.ConfirmTarget(context.Background(), us) }
	isServer := func(w *env, us *vmpb.HypervisorID) error {
		is, err := w.ConfirmServer(context.Background(), us)
		if err == nil && !is {
			err = ErrNotAuthoritative
		}
		return err
	}
	for name, test := range map[string]struct {
		given   setup
		cached  func(*v1alpha1.VirtualMachine)
		confirm func(*env, *vmpb.HypervisorID) error
		us      *vmpb.HypervisorID
		want    error
	}{
		"the holder":                               {nil, nil, next, process("vm-1", 5), nil},
		"the next process":                         {nil, nil, next, process("vm-1", 6), nil},
		"an earlier process":                       {nil, nil, next, process("vm-1", 4), ErrNotAuthoritative},
		"the next process, with a lease":           {leased(v1alpha1.LeaseOpen), nil, next, process("vm-1", 6), ErrNotAuthoritative},
		"the target":                               {target, nil, isTarget, process("vm-2", 1), nil},
		"the target, unknown to the cache":         {target, behind, isTarget, process("vm-2", 1), nil},
		"another target":                           {target, nil, isTarget, process("vm-3", 1), ErrNotAuthoritative},
		"the source":                               {target, nil, isTarget, process("vm-1", 5), ErrNotAuthoritative},
		"the server":                               {servedUpTo(0), nil, isServer, process("vm-disks-1", 1), nil},
		"the server, unknown to the cache":         {servedUpTo(0), behind, isServer, process("vm-disks-1", 1), nil},
		"an earlier server":                        {servedUpTo(0), nil, isServer, process("vm-disks-0", 1), ErrNotAuthoritative},
		"the hypervisor of served disks":           {servedUpTo(0), nil, isServer, process("vm-1", 5), ErrNotAuthoritative},
		"no VM":                                    {nil, nil, isServer, &vmpb.HypervisorID{Namespace: fixture.Namespace, VmName: "other", PodName: "vm-disks-1", RunId: 1}, ErrNotAuthoritative},
		"the server, but the disks are not served": {all(servedUpTo(0), func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) { vm.Spec.DiskAccess = "" }), nil, isServer, process("vm-disks-1", 1), ErrNotAuthoritative},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.confirm(newEnv(t, test.given, test.cached), test.us); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("the error is %v, want %v", err, test.want)
			}
		})
	}
}

// reserves reports whether a response is a target that the status has as reserved.
func reserves(is *v1alpha1.VirtualMachineMigration, got Target) bool {
	return is != nil && is.Phase == v1alpha1.MigrationPreparing && is.TargetPodName == got.Pod && got.Refusal == ""
}

func TestRegistry_EnsureTarget(t *testing.T) {
	us, can := process("vm-1", 5), &vmpb.ReportStateRequest{State: vmpb.ReportStateRequest_STATE_RUNNING, CanMigrate: true}
	evicted := func(_ *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) {
		pods["vm-1"].DeletionTimestamp, pods["vm-1"].Finalizers = &metav1.Time{Time: now}, []string{"example.org/drain"}
	}
	sameNode := func(vm *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) {
		vm.Annotations = map[string]string{v1alpha1.AnnotationMigrate: "vm-1/" + pods["vm-1"].Spec.NodeName}
	}
	otherNode := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Annotations = map[string]string{v1alpha1.AnnotationMigrate: "vm-1/elsewhere"}
	}
	unscheduled := func(_ *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) { pods["vm-1"].Spec.NodeName = "" }
	succeeded := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Status.Migration.Phase = v1alpha1.MigrationSucceeded
	}
	failed := func(source, reason string, ago time.Duration) setup {
		return func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
			vm.Status.Migration = &v1alpha1.VirtualMachineMigration{
				Phase: v1alpha1.MigrationFailed, SourcePodName: source, TargetPodName: "vm-2", Reason: reason, Message: "why", EndTime: ptr.To(metav1.NewTime(now.Add(-ago))),
			}
		}
	}
	for name, test := range map[string]struct {
		given    setup
		us       *vmpb.HypervisorID
		report   *vmpb.ReportStateRequest
		awaited  string
		want     error
		reserved bool // a new target
		target   string
		refused  bool
		pause    time.Duration
	}{
		"requested":                     {given: ordered, us: us, report: can, reserved: true},
		"evicted":                       {given: evicted, us: us, report: can, reserved: true},
		"neither requested nor evicted": {us: us, report: can, refused: true},
		"to its own host":               {given: sameNode, us: us, report: can, refused: true},
		"the hypervisor cannot migrate": {given: ordered, us: us, report: nil, refused: true},
		"under way":                     {given: all(ordered, migrating(v1alpha1.MigrationCopying)), us: us, report: can, target: "vm-2"},
		"another process":               {given: ordered, us: process("vm-1", 6), report: can, want: ErrNotAuthoritative},
		"another Pod":                   {given: ordered, us: process("vm-2", 5), report: can, want: ErrNotAuthoritative},
		"no VM":                         {us: &vmpb.HypervisorID{Namespace: fixture.Namespace, VmName: "other", PodName: "vm-1", RunId: 5}, report: can, want: ErrNotAuthoritative},
		"to another host":               {given: otherNode, us: us, report: can, reserved: true},
		"its host is unknown":           {given: all(ordered, unscheduled), us: us, report: can, reserved: true},
		"the last one succeeded":        {given: all(ordered, failed("vm-1", "", 0), succeeded), us: us, report: can, reserved: true},
		"failed at an unknown time":     {given: all(ordered, migrating(v1alpha1.MigrationFailed)), us: us, report: can, reserved: true},
		"no capacity an hour ago":       {given: all(evicted, failed("vm-1", migration.ReasonUnschedulable, time.Hour)), us: us, report: can, reserved: true},
		"being deleted":                 {given: all(evicted, deleting), us: us, report: can, refused: true},
		"its Pod has finished":          {given: all(ordered, finished("vm-1")), us: us, report: can, want: ErrPodEnded},
		"just failed":                   {given: all(ordered, failed("vm-1", migration.ReasonCopyFailed, time.Second)), us: us, report: can, pause: time.Second},
		"failed a while ago":            {given: all(ordered, failed("vm-1", migration.ReasonCopyFailed, time.Hour)), us: us, report: can, reserved: true},
		"failed from another Pod":       {given: all(ordered, failed("vm-0", migration.ReasonCopyFailed, 0)), us: us, report: can, reserved: true},
		"no capacity for the target":    {given: all(ordered, failed("vm-1", migration.ReasonUnschedulable, time.Hour)), us: us, report: can, awaited: "vm-2", refused: true},
		"no capacity, requested":        {given: all(ordered, failed("vm-1", migration.ReasonUnschedulable, 30*time.Second)), us: us, report: can, reserved: true},
		"no capacity, evicted":          {given: all(evicted, failed("vm-1", migration.ReasonUnschedulable, 30*time.Second)), us: us, report: can, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, nil)
			before := w.status(t).Migration
			got, err := w.EnsureTarget(t.Context(), Source{Us: test.us, Report: test.report, Awaited: test.awaited})
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Fatalf("the error is %v, want %v", err, test.want)
			}
			is := w.status(t).Migration
			switch {
			case test.reserved:
				if !reserves(is, got) || got.Pod == "vm-2" {
					t.Errorf("got %+v, and %+v is stored", got, is)
				}
			case got.Pod != test.target || (got.Limits != nil) != (test.target != "") || (got.Refusal != "") != test.refused || got.Pause != test.pause || gocmp.Diff(before, is) != "":
				t.Errorf("got %+v, and %+v is stored", got, is)
			}
		})
	}
}

// TestRegistry_EnsureTargetOfStoppingHost checks that a VM whose host stops its hypervisor without deleting the Pod
// migrates only if the time that the host gives is known and enough of it remains. After a deletion, the grace period of
// the Pod applies.
func TestRegistry_EnsureTargetOfStoppingHost(t *testing.T) {
	deleted := func(_ *v1alpha1.VirtualMachine, pods map[string]*corev1.Pod) {
		pods["vm-1"].DeletionTimestamp, pods["vm-1"].Finalizers = &metav1.Time{Time: now}, []string{"example.org/drain"}
	}
	const host = 90 * time.Second // a shutdown needs 30 s of it
	for name, test := range map[string]struct {
		given    setup
		host     time.Duration
		stopping time.Duration
		target   string // "new" for a new one
		grace    time.Duration
		pause    time.Duration // time until the target is refused
		refusal  string
	}{
		"the time is not known":          {stopping: time.Second, refusal: "--vm-host-shutdown-grace-period"},
		"not asked to terminate":         {host: host, refusal: "no migration was requested"},
		"time remains":                   {host: host, stopping: 30 * time.Second, target: "new"},
		"too little time remains":        {host: host, stopping: 31 * time.Second, refusal: "gives it 1m30s"},
		"a shutdown takes all time":      {host: 30 * time.Second, stopping: 1, refusal: "gives it 30s"},
		"under way":                      {given: migrating(v1alpha1.MigrationPreparing), host: host, stopping: 20 * time.Second, target: "vm-2", grace: host, pause: 10*time.Second + 1},
		"under way, at the last moment":  {given: migrating(v1alpha1.MigrationPreparing), host: host, stopping: 30 * time.Second, target: "vm-2", grace: host, pause: 1},
		"under way for too long":         {given: migrating(v1alpha1.MigrationPreparing), host: host, stopping: 31 * time.Second, refusal: "gives it 1m30s"},
		"requested, under way":           {given: all(ordered, migrating(v1alpha1.MigrationPreparing)), host: host, stopping: time.Second, target: "vm-2", grace: host, pause: 29*time.Second + 1},
		"requested, the time is unknown": {given: all(ordered, migrating(v1alpha1.MigrationPreparing)), stopping: time.Hour, target: "vm-2"},
		"deleted":                        {given: all(deleted, migrating(v1alpha1.MigrationPreparing)), host: host, stopping: time.Hour, target: "vm-2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, nil)
			w.Migration.HostShutdown = test.host
			can := &vmpb.ReportStateRequest{State: vmpb.ReportStateRequest_STATE_RUNNING, CanMigrate: true}
			got, err := w.EnsureTarget(t.Context(), Source{Us: process("vm-1", 5), Report: can, Stopping: test.stopping})
			if err != nil {
				t.Fatal(err)
			}
			if test.target == "new" && reserves(w.status(t).Migration, got) {
				return
			}
			if got.Pod != test.target || got.Grace != test.grace || got.Pause != test.pause || (got.Refusal == "") != (test.refusal == "") || !strings.Contains(got.Refusal, test.refusal) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestRegistry_EnsureTargetOfServedDisks checks that the target of a VM with served disks gets a fencing token but no
// disk.
func TestRegistry_EnsureTargetOfServedDisks(t *testing.T) {
	can := &vmpb.ReportStateRequest{State: vmpb.ReportStateRequest_STATE_RUNNING, CanMigrate: true}
	for name, test := range map[string]struct {
		given setup
		claim bool
		token int64
	}{
		"not served": {ordered, true, 0},
		"served":     {all(ordered, leased(v1alpha1.LeaseOpen), servedUpTo(99)), false, now.UnixMilli()},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, nil)
			if _, err := w.EnsureTarget(t.Context(), Source{Us: process("vm-1", 5), Report: can}); err != nil {
				t.Fatal(err)
			}
			if is := w.status(t).Migration; (is.TargetVolumeClaimName != "") != test.claim || is.TargetFencingToken != test.token {
				t.Errorf("the migration is %+v", is)
			}
		})
	}
}

// TestRegistry_EnsureTargetWaitsForSlot checks the limit of concurrent migrations per host.
func TestRegistry_EnsureTargetWaitsForSlot(t *testing.T) {
	w := newEnv(t, ordered, nil)
	w.MigrationsPerHost = 1
	other := fixture.Named("other", fixture.VirtualMachine())
	other.Status.ActivePodName = "other-1"
	other.Status.Migration = &v1alpha1.VirtualMachineMigration{Phase: v1alpha1.MigrationCopying, SourcePodName: "other-1", SourceNodeName: fixture.Pod().Spec.NodeName}
	status := other.Status
	if err := w.live.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	other.Status = status
	if err := w.live.Status().Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	can := &vmpb.ReportStateRequest{State: vmpb.ReportStateRequest_STATE_RUNNING, CanMigrate: true}
	if got, err := w.EnsureTarget(t.Context(), Source{Us: process("vm-1", 5), Report: can}); err != nil || got != (Target{Pause: slotPause}) || w.status(t).Migration != nil {
		t.Errorf("%+v, %v while another VM leaves the host", got, err)
	}
	if reserved, err := w.reserveSlot(t.Context(), process("vm-1", 5), "", "vm-2"); !reserved || err != nil {
		t.Errorf("a VM without a host waits, %v", err)
	}
	if err := w.live.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if got, err := w.EnsureTarget(t.Context(), Source{Us: process("vm-1", 5), Report: can}); err != nil || got.Pod == "" {
		t.Errorf("%+v, %v when no other VM leaves the host", got, err)
	}
}

// TestRegistry_Swap checks how a change of the authority affects the other fields of the status.
func TestRegistry_Swap(t *testing.T) {
	type authority = v1alpha1.VirtualMachineAuthority
	complete := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Status.ImagePrepared = true
		vm.Status.GrowDisks = []v1alpha1.DiskSize{{Bytes: 7}}
	}
	ephemeral := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) { vm.Status.VolumeClaimName = "" }
	replaced := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Annotations = map[string]string{v1alpha1.AnnotationReplaceDisk: "vm-1"}
	}
	for name, test := range map[string]struct {
		given          setup
		next           authority
		prepared, same bool // the disk is complete; the guest keeps running
		token          int64
	}{
		"another run":                   {complete, authority{ActivePodName: "vm-1", ActivePodUID: "uid", ActiveRunID: "6", VolumeClaimName: "disk-1"}, true, true, 0},
		"another run, with a lease":     {all(complete, leased(v1alpha1.LeaseOpen)), authority{ActivePodName: "vm-1", ActivePodUID: "uid", ActiveRunID: "6", VolumeClaimName: "disk-1"}, true, true, 100},
		"the next Pod":                  {complete, authority{ActivePodName: "vm-9", VolumeClaimName: "disk-1"}, true, false, 0},
		"the next Pod, with a lease":    {all(complete, leased(v1alpha1.LeaseRevoked)), authority{ActivePodName: "vm-9", VolumeClaimName: "disk-1"}, true, false, now.UnixMilli()},
		"the next Pod, another disk":    {complete, authority{ActivePodName: "vm-9", VolumeClaimName: "disk-9"}, false, false, 0},
		"the next Pod, ephemeral disk":  {complete, authority{ActivePodName: "vm-9"}, false, false, 0},
		"ephemeral disks":               {all(complete, ephemeral), authority{ActivePodName: "vm-9"}, false, false, 0},
		"the next Pod, replaced disk":   {all(complete, replaced), authority{ActivePodName: "vm-9", VolumeClaimName: "disk-1"}, false, false, 0},
		"the next Pod, served disks":    {all(complete, servedUpTo(0)), authority{ActivePodName: "vm-9", VolumeClaimName: "disk-9"}, true, false, 0},
		"an existing Pod, another disk": {complete, authority{ActivePodName: "vm-9", ActivePodUID: "uid-9", VolumeClaimName: "disk-9"}, true, false, 0},
		"the target of a migration":     {all(complete, migrating(v1alpha1.MigrationCopying)), authority{ActivePodName: "vm-2", VolumeClaimName: "disk-2"}, true, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, nil)
			vm, err := read(t.Context(), w.APIReader, client.ObjectKeyFromObject(fixture.VirtualMachine()))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Registry.Swap(t.Context(), vm, test.next); err != nil {
				t.Fatal(err)
			}
			is := w.status(t)
			if is.VirtualMachineAuthority != test.next || is.ImagePrepared != test.prepared || (len(is.GrowDisks) > 0) != test.same {
				t.Errorf("stored: %+v, complete %t, %d disks grow", is.VirtualMachineAuthority, is.ImagePrepared, len(is.GrowDisks))
			}
			if (is.Lease != nil) != (test.token != 0) || is.Lease != nil && is.Lease.FencingToken != test.token {
				t.Errorf("the lease is %+v, want token %d", is.Lease, test.token)
			}
			if creating := meta.FindStatusCondition(is.Conditions, v1alpha1.ConditionReady) != nil; creating == test.same {
				t.Errorf("the condition Ready is set: %t", creating)
			}
		})
	}
}

// TestRegistry_SwapOfStaleObject checks that only one of two writers that have read the same VM gets it.
func TestRegistry_SwapOfStaleObject(t *testing.T) {
	w := newEnv(t, nil, nil)
	vm, err := read(t.Context(), w.APIReader, client.ObjectKeyFromObject(fixture.VirtualMachine()))
	if err != nil {
		t.Fatal(err)
	}
	old := vm.DeepCopy()
	next := vm.Status.VirtualMachineAuthority
	next.ActiveRunID = "6"
	if err := w.Registry.Swap(t.Context(), vm, next); err != nil {
		t.Fatal(err)
	}
	next.ActiveRunID = "7"
	if err := w.Registry.Swap(t.Context(), old, next); err == nil || old.Status.ActiveRunID != "5" || w.status(t).ActiveRunID != "6" {
		t.Errorf("the second write returns error %v, and run %s is stored", err, w.status(t).ActiveRunID)
	}
}

// TestRegistry_Conflicts checks that a call is evaluated again if another process wrote first, but not without a
// limit.
func TestRegistry_Conflicts(t *testing.T) {
	kind := schema.GroupResource{Group: v1alpha1.SchemeGroupVersion.Group, Resource: "virtualmachines"}
	conflict, gone, unreachable := apierrors.NewConflict(kind, "vm", errors.New("changed")), apierrors.NewNotFound(kind, "vm"), errors.New("unreachable")
	denied := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: `admission webhook "a" denied the request`}}
	for name, test := range map[string]struct {
		fails  int
		err    error
		want   error
		writes int
	}{
		"one conflict":           {1, conflict, nil, 2},
		"deleted meanwhile":      {1, gone, nil, 2},
		"conflicts forever":      {1000, conflict, ErrBusy, maxTries - 1},
		"API server unreachable": {1, unreachable, unreachable, 1},
		"denied by a webhook":    {1000, denied, denied, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, nil, nil)
			w.fail = func() error {
				if test.fails--; test.fails >= 0 {
					return test.err
				}
				return nil
			}
			_, err := w.Lease(t.Context(), process("vm-1", 6), false)
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) || w.writes != test.writes {
				t.Errorf("%d writes and the error %v, want %d and %v", w.writes, err, test.writes, test.want)
			}
		})
	}
}

// TestRegistry_ConfirmNextWithoutCache checks that a hypervisor is not ordered to stop because its VM cannot be read.
func TestRegistry_ConfirmNextWithoutCache(t *testing.T) {
	r := &Registry{Client: interceptor.NewClient(newEnv(t, nil, nil).live, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errUnreachable
		},
	})}
	if err := r.ConfirmNext(t.Context(), process("vm-1", 5)); !errors.Is(err, errUnreachable) || errors.Is(err, ErrNotAuthoritative) {
		t.Errorf("the error is %v", err)
	}
}

// TestRegistry_CacheSuffices checks that calls that the cache can decide do not read from the API server.
func TestRegistry_CacheSuffices(t *testing.T) {
	for name, test := range map[string]struct {
		us   *vmpb.HypervisorID
		call func(*env, *vmpb.HypervisorID) error
	}{
		"lease of the holder": {process("vm-1", 5), func(w *env, us *vmpb.HypervisorID) error {
			_, err := w.Lease(context.Background(), us, false)
			return err
		}},
		"report of the holder": {process("vm-1", 5), func(w *env, us *vmpb.HypervisorID) error {
			return w.Confirm(context.Background(), us, nil)
		}},
		"disk server": {process("vm-disks-1", 1), func(w *env, us *vmpb.HypervisorID) error {
			_, err := w.ConfirmServer(context.Background(), us)
			return err
		}},
		"holder, which is not the disk server": {process("vm-1", 5), func(w *env, us *vmpb.HypervisorID) error {
			_, err := w.ConfirmServer(context.Background(), us)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, servedUpTo(0), nil)
			w.APIReader = interceptor.NewClient(w.live, interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return errUnreachable
				},
			})
			if err := test.call(w, test.us); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRegistry_EnsureTargetKeepsItsSlot checks that a slot is kept after the target is stored, and only then.
func TestRegistry_EnsureTargetKeepsItsSlot(t *testing.T) {
	can := &vmpb.ReportStateRequest{State: vmpb.ReportStateRequest_STATE_RUNNING, CanMigrate: true}
	for name, test := range map[string]struct {
		list, write error
		kept        bool
	}{
		"stored":          {nil, nil, true},
		"write fails":     {nil, errUnreachable, false},
		"unreadable list": {errUnreachable, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, ordered, nil)
			w.MigrationsPerHost = 1
			w.fail = func() error { return test.write }
			w.Client = interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					return cmp.Or(test.list, c.List(ctx, list, opts...))
				},
			})
			_, err := w.EnsureTarget(t.Context(), Source{Us: process("vm-1", 5), Report: can})
			if want := cmp.Or(test.list, test.write); !errors.Is(err, want) || (err == nil) != test.kept {
				t.Errorf("the error is %v, want %v", err, want)
			}
			if _, kept := w.slots.reserved[KeyOf(process("vm-1", 5))]; kept != test.kept {
				t.Errorf("the slot is kept: %t", kept)
			}
		})
	}
}

// TestRegistry_UnreadablePod checks that a hypervisor is not ordered to stop because its Pod cannot be read.
func TestRegistry_UnreadablePod(t *testing.T) {
	w := newEnv(t, noAuthority, nil)
	w.APIReader = interceptor.NewClient(w.live, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if _, is := object.(*corev1.Pod); is {
				return errUnreachable
			}
			return c.Get(ctx, key, object, opts...)
		},
	})
	if update, err := w.Lease(t.Context(), process("vm-1", 5), false); !errors.Is(err, errUnreachable) {
		t.Errorf("the update is %v, and the error %v", update, err)
	}
}

// TestRegistry_SwapReservesDataDisks checks that the status has the data disks of the next Pod once its name is
// reserved, unless a disk server has them.
func TestRegistry_SwapReservesDataDisks(t *testing.T) {
	logs := func(vm *v1alpha1.VirtualMachine, _ map[string]*corev1.Pod) {
		vm.Spec.DataDisks = []v1alpha1.DataDisk{{Name: "logs"}}
	}
	for name, test := range map[string]struct {
		given setup
		next  v1alpha1.VirtualMachineAuthority
		want  int
	}{
		"reserved":        {logs, v1alpha1.VirtualMachineAuthority{ActivePodName: "vm-9", VolumeClaimName: "disk-1"}, 1},
		"served":          {all(logs, servedUpTo(0)), v1alpha1.VirtualMachineAuthority{ActivePodName: "vm-9", VolumeClaimName: "disk-1"}, 0},
		"an existing Pod": {logs, v1alpha1.VirtualMachineAuthority{ActivePodName: "vm-9", ActivePodUID: "uid-9", VolumeClaimName: "disk-1"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newEnv(t, test.given, nil)
			vm, err := read(t.Context(), w.APIReader, client.ObjectKeyFromObject(fixture.VirtualMachine()))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Registry.Swap(t.Context(), vm, test.next); err != nil {
				t.Fatal(err)
			}
			if is := w.status(t).DataDisks; len(is) != test.want {
				t.Errorf("stored: %+v", is)
			}
		})
	}
}

// TestRegistry_Elect checks that, after the status was lost, a hypervisor gets a lease if it was started with leases.
func TestRegistry_Elect(t *testing.T) {
	for mode, want := range map[v1alpha1.LeaseMode]bool{v1alpha1.LeaseFullLeases: true, v1alpha1.LeaseStorageLocking: false} {
		t.Run(string(mode), func(t *testing.T) {
			w := newEnv(t, noAuthority, nil)
			vm, err := read(t.Context(), w.APIReader, client.ObjectKeyFromObject(fixture.VirtualMachine()))
			if err != nil {
				t.Fatal(err)
			}
			started := vm.DeepCopy()
			started.Spec.LeaseMode, started.Status.ActivePodName = mode, "vm-1"
			if want {
				started.Status.Lease = &v1alpha1.VirtualMachineLease{DurationSeconds: 20}
			}
			pod, err := podspec.Pod(started, podspec.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Elect(t.Context(), vm, pod); err != nil {
				t.Fatal(err)
			}
			if is := w.status(t); is.ActivePodName != "vm-1" || (is.Lease != nil) != want {
				t.Errorf("the Pod is %q, and the lease %+v", is.ActivePodName, is.Lease)
			}
		})
	}
}

// TestRegistry_ElectOfAMalformedPod checks that a hypervisor is not elected if its lease mode is unknown.
func TestRegistry_ElectOfAMalformedPod(t *testing.T) {
	w := newEnv(t, noAuthority, nil)
	vm, err := read(t.Context(), w.APIReader, client.ObjectKeyFromObject(fixture.VirtualMachine()))
	if err != nil {
		t.Fatal(err)
	}
	pod := fixture.Named("vm-1", fixture.Pod())
	pod.Spec.Containers = nil
	if err := w.Elect(t.Context(), vm, pod); err == nil || w.writes > 0 {
		t.Errorf("%d writes, error %v", w.writes, err)
	}
}
