package authority

import (
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// withTokens returns a status. 0 is none.
func withTokens(holder, target, revoked int64) *v1alpha1.VirtualMachineStatus {
	status := &v1alpha1.VirtualMachineStatus{}
	if holder > 0 {
		status.Lease = &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, FencingToken: holder, DurationSeconds: 60}
	}
	if target > 0 {
		status.Migration = &v1alpha1.VirtualMachineMigration{SourcePodName: "s", TargetPodName: "t", TargetFencingToken: target}
	}
	if revoked > 0 {
		status.DiskServer = &v1alpha1.DiskServerStatus{RevokedToken: revoked}
	}
	return status
}

func TestNextToken(t *testing.T) {
	now := time.UnixMilli(1000)
	for name, test := range map[string]struct{ holder, target, revoked, want int64 }{
		"the first":                                {0, 0, 0, 1000},
		"after one":                                {500, 0, 0, 1000},
		"after one of the same millisecond":        {1000, 0, 0, 1001},
		"after one of a target":                    {1000, 1001, 999, 1002},
		"all before are revoked":                   {500, 0, 998, 999},
		"the status was lost, but what is revoked": {0, 0, 998, 999},
		"a target beside the source":               {1000, 0, 999, 1001},
	} {
		t.Run(name, func(t *testing.T) {
			status := withTokens(test.holder, test.target, test.revoked)
			if got := nextToken(status, now); got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
			if HighestToken(status) >= test.want {
				t.Errorf("%d was given before", HighestToken(status))
			}
		})
	}
}

func TestAccessOf(t *testing.T) {
	for name, test := range map[string]struct {
		access v1alpha1.DiskAccess
		status *v1alpha1.VirtualMachineStatus
		want   Access
	}{
		"disks in the Pod":       {"", withTokens(7, 0, 0), AccessDirect},
		"no lease":               {v1alpha1.DiskAccessServed, withTokens(0, 0, 6), AccessDirect},
		"no server":              {v1alpha1.DiskAccessServed, withTokens(7, 0, 0), AccessAwaited},
		"one before is not":      {v1alpha1.DiskAccessServed, withTokens(7, 0, 5), AccessAwaited},
		"all before are revoked": {v1alpha1.DiskAccessServed, withTokens(7, 0, 6), AccessOpen},
		"the holder is, too":     {v1alpha1.DiskAccessServed, withTokens(7, 0, 7), AccessRevoked},
		"a target of before is":  {v1alpha1.DiskAccessServed, withTokens(9, 8, 8), AccessOpen},
	} {
		t.Run(name, func(t *testing.T) {
			vm := &v1alpha1.VirtualMachine{Spec: v1alpha1.VirtualMachineSpec{DiskAccess: test.access}, Status: *test.status}
			if got := AccessOf(vm); got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
		})
	}
}

// The target of a migration keeps the token with which it has attached the disks; a source that takes its VM back gets one that
// is above both.
func TestTokenMovesWithTheLease(t *testing.T) {
	for pod, want := range map[string]int64{"t": 8, "s": 1000} {
		status := withTokens(7, 8, 6)
		status.ActivePodName = pod
		passLease(status, time.UnixMilli(1000))
		if status.Lease.FencingToken != want {
			t.Errorf("pod %s gets token %d, want %d", pod, status.Lease.FencingToken, want)
		}
	}
}
