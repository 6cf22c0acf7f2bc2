package authority

import (
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// withTokens returns a status with fencing tokens. 0 means that there is no such token.
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
		"first token":                           {0, 0, 0, 1000},
		"after an earlier token":                {500, 0, 0, 1000},
		"after a token of the same millisecond": {1000, 0, 0, 1001},
		"after the token of a migration target": {1000, 1001, 999, 1002},
		"all earlier tokens are revoked":        {500, 0, 998, 999},
		"the last token is revoked":             {998, 0, 998, 999},
		"lease lost, revocation kept":           {0, 0, 998, 999},
		"target next to the source":             {1000, 0, 999, 1001},
	} {
		t.Run(name, func(t *testing.T) {
			status := withTokens(test.holder, test.target, test.revoked)
			if got := nextToken(status, now); got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
			if HighestToken(status) >= test.want {
				t.Errorf("token %d was already used", HighestToken(status))
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
		"disks in the Pod":                          {"", withTokens(7, 0, 0), AccessDirect},
		"no lease":                                  {v1alpha1.DiskAccessServed, withTokens(0, 0, 6), AccessDirect},
		"no server":                                 {v1alpha1.DiskAccessServed, withTokens(7, 0, 0), AccessAwaited},
		"an earlier token is not revoked":           {v1alpha1.DiskAccessServed, withTokens(7, 0, 5), AccessAwaited},
		"all earlier tokens are revoked":            {v1alpha1.DiskAccessServed, withTokens(7, 0, 6), AccessOpen},
		"the holder's token is revoked":             {v1alpha1.DiskAccessServed, withTokens(7, 0, 7), AccessRevoked},
		"the token of an earlier target is revoked": {v1alpha1.DiskAccessServed, withTokens(9, 8, 8), AccessOpen},
	} {
		t.Run(name, func(t *testing.T) {
			vm := &v1alpha1.VirtualMachine{Spec: v1alpha1.VirtualMachineSpec{DiskAccess: test.access}, Status: *test.status}
			if got := AccessOf(vm); got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
		})
	}
}

// TestToken_MovesWithLease checks that the target of a migration keeps the token with which it has attached the
// disks, and that a source that takes its VM back gets a token higher than both.
func TestToken_MovesWithLease(t *testing.T) {
	for name, test := range map[string]struct {
		pod    string
		target int64
		want   int64
	}{
		"target":                              {"t", 8, 8},
		"target with the token of the source": {"t", 7, 1000},
		"source":                              {"s", 8, 1000},
		"no migration":                        {"s", 0, 1000},
	} {
		status := withTokens(7, test.target, 6)
		status.ActivePodName = test.pod
		passLease(status, time.UnixMilli(1000))
		if status.Lease.FencingToken != test.want {
			t.Errorf("%s: token %d, want %d", name, status.Lease.FencingToken, test.want)
		}
	}
}

// TestIsServer_NoPod checks that a process without a Pod name is not a server that has no Pod yet.
func TestIsServer_NoPod(t *testing.T) {
	if IsServer(&v1alpha1.VirtualMachineStatus{DiskServer: &v1alpha1.DiskServerStatus{}}, "") {
		t.Error("it is the server")
	}
}
