package disks

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

func podNamed(name string, uid types.UID, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}, Status: corev1.PodStatus{Phase: phase}}
}

func TestNext(t *testing.T) {
	running, ended := podNamed("s", "1", corev1.PodRunning), podNamed("s", "1", corev1.PodFailed)
	leaving := running.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	other, otherEnded := podNamed("t", "2", corev1.PodRunning), podNamed("t", "2", corev1.PodSucceeded)
	stored := func(uid types.UID) *v1alpha1.DiskServerStatus {
		return &v1alpha1.DiskServerStatus{PodName: "s", PodUID: uid}
	}
	for name, test := range map[string]struct {
		facts  Facts
		want   Step
		serves bool
	}{
		"no server":                           {Facts{}, Reserve, false},
		"an unrecorded server is running":     {Facts{Others: []*corev1.Pod{other}}, Await, false},
		"an unrecorded server has terminated": {Facts{Others: []*corev1.Pod{otherEnded}}, Reserve, false},
		"reserved":                            {Facts{Stored: stored("")}, Create, false},
		"reserved, another is running":        {Facts{Stored: stored(""), Others: []*corev1.Pod{other}}, Await, false},
		"created but not recorded":            {Facts{Stored: stored(""), Pod: running}, Record, false},
		"running":                             {Facts{Stored: stored("1"), Pod: running}, Keep, true},
		"running, another is running":         {Facts{Stored: stored("1"), Pod: running, Others: []*corev1.Pod{other}}, Keep, true},
		"being deleted, may still serve":      {Facts{Stored: stored("1"), Pod: leaving}, Keep, false},
		"terminated":                          {Facts{Stored: stored("1"), Pod: ended}, Reserve, false},
		"gone":                                {Facts{Stored: stored("1")}, Reserve, false},
		"gone, another is running":            {Facts{Stored: stored("1"), Others: []*corev1.Pod{other}}, Await, false},
		"another Pod has the name":            {Facts{Stored: stored("0"), Pod: running}, Reserve, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Next(test.facts); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			if served := test.facts.Served(); (served != nil) != test.serves {
				t.Errorf("served by %v", served)
			}
		})
	}
}

func TestDesiredFor(t *testing.T) {
	open, released := v1alpha1.LeaseOpen, v1alpha1.LeaseReleased
	holder := Holder{Token: 7, Pod: "h"}
	target := Holder{Token: 8, Pod: "t"}
	for name, test := range map[string]struct {
		access      v1alpha1.DiskAccess
		state       v1alpha1.LeaseState
		revoked     int64
		targetToken int64
		want        Desired
	}{
		"disks in the Pod":                   {v1alpha1.DiskAccessDirect, open, 0, 0, Desired{}},
		"an earlier token is not revoked":    {v1alpha1.DiskAccessServed, open, 5, 0, Desired{Revoke: 6, Open: []Holder{holder}}},
		"all earlier tokens are revoked":     {v1alpha1.DiskAccessServed, open, 6, 0, Desired{Open: []Holder{holder}}},
		"a suspected holder keeps the disks": {v1alpha1.DiskAccessServed, v1alpha1.LeaseSuspected, 6, 0, Desired{Open: []Holder{holder}}},
		"a released lease gets no disks":     {v1alpha1.DiskAccessServed, released, 6, 0, Desired{}},
		"the holder is revoked":              {v1alpha1.DiskAccessServed, open, 7, 0, Desired{}},
		"target next to the source":          {v1alpha1.DiskAccessServed, open, 6, 8, Desired{Open: []Holder{holder, target}}},
		"target with a revoked token":        {v1alpha1.DiskAccessServed, open, 6, 6, Desired{Open: []Holder{holder}}},
		"source that has taken its VM back":  {v1alpha1.DiskAccessServed, open, 5, 6, Desired{Revoke: 6, Open: []Holder{holder}}},
	} {
		t.Run(name, func(t *testing.T) {
			vm := &v1alpha1.VirtualMachine{Spec: v1alpha1.VirtualMachineSpec{DiskAccess: test.access}}
			vm.Status.ActivePodName = "h"
			vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: test.state, FencingToken: 7}
			vm.Status.DiskServer = &v1alpha1.DiskServerStatus{RevokedToken: test.revoked}
			if test.targetToken > 0 {
				vm.Status.Migration = &v1alpha1.VirtualMachineMigration{
					Phase: v1alpha1.MigrationCopying, SourcePodName: "h", TargetPodName: "t", TargetFencingToken: test.targetToken,
				}
			}
			if diff := cmp.Diff(test.want, DesiredFor(vm)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
