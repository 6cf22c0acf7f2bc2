package podspec

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestMigrationLimits(t *testing.T) {
	const cancel = vmpb.MigrationLimits_TIMEOUT_POLICY_CANCEL
	limits := func(bandwidth uint64, downtime time.Duration, noAutoConverge bool, timeout time.Duration, policy vmpb.MigrationLimits_TimeoutPolicy) *vmpb.MigrationLimits {
		return &vmpb.MigrationLimits{
			Bandwidth: bandwidth, Downtime: durationpb.New(downtime), NoAutoConverge: noAutoConverge,
			CompletionTimeout: durationpb.New(timeout), TimeoutPolicy: policy,
		}
	}
	flags := Migration{Bandwidth: 100 << 20, MigrationDefaults: MigrationDefaults{
		DowntimeLimit: time.Second, NoAutoConverge: true, CompletionTimeoutPerGiB: time.Minute, CompletionTimeoutPolicy: v1alpha1.CompletionTimeoutCancel,
	}}
	set := func(bandwidth string) *v1alpha1.MigrationSettings {
		return &v1alpha1.MigrationSettings{
			Bandwidth: ptr.To(resource.MustParse(bandwidth)), DowntimeLimitMilliseconds: 7, AllowAutoConverge: ptr.To(true),
			CompletionTimeoutSecondsPerGiB: 5, CompletionTimeoutPolicy: v1alpha1.CompletionTimeoutPause,
		}
	}
	served := func(vm *v1alpha1.VirtualMachine) { vm.Spec.DiskAccess = v1alpha1.DiskAccessServed }
	disks := &vmpb.ReportStateRequest{Disks: []*vmpb.DiskSize{{Bytes: 3 << 30}, {Name: "logs", Bytes: 1}}}
	for name, test := range map[string]struct {
		given    func(*v1alpha1.VirtualMachine)
		settings Migration
		sharing  Sharing
		report   *vmpb.ReportStateRequest
		want     *vmpb.MigrationLimits
	}{
		"defaults":                      {want: limits(0, 300*time.Millisecond, false, 150*time.Second, 0)},
		"flags":                         {settings: flags, want: limits(100<<20, time.Second, true, time.Minute, cancel)},
		"the VM's own":                  {given: func(vm *v1alpha1.VirtualMachine) { vm.Spec.Migration = set("10Mi") }, settings: flags, want: limits(10<<20, 7*time.Millisecond, false, 5*time.Second, 0)},
		"less bandwidth than requested": {given: func(vm *v1alpha1.VirtualMachine) { vm.Spec.Migration = set("1Gi") }, settings: flags, want: limits(100<<20, 7*time.Millisecond, false, 5*time.Second, 0)},
		"any bandwidth without a flag":  {given: func(vm *v1alpha1.VirtualMachine) { vm.Spec.Migration = set("1Gi") }, want: limits(1<<30, 7*time.Millisecond, false, 5*time.Second, 0)},
		"disks that are copied":         {report: disks, want: limits(0, 300*time.Millisecond, false, 4*150*time.Second, 0)},
		"disks that are shared":         {report: disks, sharing: Shared, want: limits(0, 300*time.Millisecond, false, 150*time.Second, 0)},
		"disks that are served":         {report: disks, given: served, want: limits(0, 300*time.Millisecond, false, 150*time.Second, 0)},
		"more memory than one GiB":      {given: func(vm *v1alpha1.VirtualMachine) { vm.Spec.Memory = ptr.To(resource.MustParse("1025Mi")) }, want: limits(0, 300*time.Millisecond, false, 300*time.Second, 0)},
		"auto-converge disabled by the VM": {given: func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.Migration = &v1alpha1.MigrationSettings{AllowAutoConverge: ptr.To(false)}
		}, want: limits(0, 300*time.Millisecond, true, 150*time.Second, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			vm := fixture.VirtualMachine()
			vm.Status.ActivePodName, vm.Status.VolumeClaimName = "a-1", "a"
			if test.given != nil {
				test.given(vm)
			}
			source, err := Pod(vm, Settings{Image: "hypervisor:1"})
			if err != nil {
				t.Fatal(err)
			}
			if err := test.sharing.Set(source); err != nil {
				t.Fatal(err)
			}
			if got := MigrationLimits(vm, source, test.report, test.settings); !proto.Equal(got, test.want) {
				t.Errorf("limits %v, want %v", got, test.want)
			}
		})
	}
}
