package restore

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// atNoon is the annotation of a wait that begins at noon.
const atNoon = "2026-01-02T12:15:00Z"

type setChange = func(*v1alpha1.MachineSet)

func setAnnotation(key, value string) setChange {
	return func(set *v1alpha1.MachineSet) { metav1.SetMetaDataAnnotation(&set.ObjectMeta, key, value) }
}

func TestBeginSet_OnlyRestoredSets(t *testing.T) {
	held := func(set *v1alpha1.MachineSet) { set.Finalizers = []string{v1alpha1.FinalizerMCM} }
	revised := setAnnotation(v1alpha1.AnnotationKeyRevision, "1")
	owned := func(set *v1alpha1.MachineSet) {
		set.OwnerReferences = []metav1.OwnerReference{{UID: "pool", Controller: ptr.To(true)}}
	}
	observed := func(set *v1alpha1.MachineSet) { set.Status.ObservedGeneration = 1 }
	failing := func(set *v1alpha1.MachineSet) {
		set.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure}}
	}
	for name, tc := range map[string]struct {
		changes []setChange
		want    string
	}{
		"new, of a user":                      {nil, ""},
		"new, of a deployment":                {[]setChange{held, revised, owned}, ""},
		"of a deployment":                     {[]setChange{held, revised}, atNoon},
		"of a deployment, without finalizers": {[]setChange{revised}, atNoon},
		"of a user":                           {[]setChange{held, setAnnotation(v1alpha1.AnnotationKeyUID, "other")}, atNoon},
		"of a user, without finalizers":       {[]setChange{setAnnotation(v1alpha1.AnnotationKeyUID, "other")}, atNoon},
		"of a user of MCM":                    {[]setChange{held}, atNoon},
		"the process terminated before it wrote the status": {[]setChange{held, setAnnotation(v1alpha1.AnnotationKeyUID, "uid")}, ""},
		"released by its deployment":                        {[]setChange{held, revised, observed}, ""},
		"released by its deployment, failing":               {[]setChange{held, revised, failing}, ""},
		"waits already":                                     {[]setChange{revised, setAnnotation(v1alpha1.AnnotationKeyAwaitsRestoreUntil, "2026-01-02T12:01:00Z")}, "2026-01-02T12:01:00Z"},
		"waited when it was backed up":                      {[]setChange{revised, setAnnotation(v1alpha1.AnnotationKeyAwaitsRestoreUntil, "2025-01-02T12:01:00Z")}, atNoon},
	} {
		set := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}
		for _, change := range tc.changes {
			change(set)
		}
		was := set.Annotations[v1alpha1.AnnotationKeyAwaitsRestoreUntil]
		changed := BeginSet(set, noon)
		if got := set.Annotations[v1alpha1.AnnotationKeyAwaitsRestoreUntil]; got != tc.want || changed != (got != was) || Waits(set) != (tc.want != "") {
			t.Errorf("%s: waits until %q, changed %v; want %q", name, got, changed, tc.want)
		}
	}
}

func TestBeginDeployment_OnlyRestoredDeployments(t *testing.T) {
	for name, tc := range map[string]struct {
		revision string
		observed int64
		want     bool
	}{
		"new":      {"", 0, false},
		"restored": {"3", 0, true},
		"known":    {"3", 1, false},
	} {
		deployment := &v1alpha1.MachineDeployment{Status: v1alpha1.MachineDeploymentStatus{ObservedGeneration: tc.observed}}
		if tc.revision != "" {
			metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyRevision, tc.revision)
		}
		if BeginDeployment(deployment, noon) != tc.want || Waits(deployment) != tc.want {
			t.Errorf("%s: waits %v", name, Waits(deployment))
		}
	}
}

func TestExpired_AlsoForImpossibleTimes(t *testing.T) {
	for until, want := range map[string]bool{
		atNoon:                 false,
		"2026-01-02T12:00:01Z": false,
		"2026-01-02T12:00:00Z": true,
		"2026-01-02T12:29:00Z": false, // by a clock that is ahead
		"2026-01-02T13:00:00Z": true,
		"9999-01-02T13:00:00Z": true,
		"later":                true,
		"":                     true,
	} {
		set := &v1alpha1.MachineSet{}
		setAnnotation(v1alpha1.AnnotationKeyAwaitsRestoreUntil, until)(set)
		if got := Expired(set, noon); got != want || !Waits(set) {
			t.Errorf("%s: expired %v, want %v", until, got, want)
		}
		if End(set); Waits(set) {
			t.Errorf("%s: it still waits after its end", until)
		}
	}
}

func TestRecordUID_OnlyOfSetsWithoutDeployment(t *testing.T) {
	set := &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}
	if RecordUID(set); set.Annotations[v1alpha1.AnnotationKeyUID] != "uid" {
		t.Errorf("annotations %v", set.Annotations)
	}
	set = &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{UID: "uid", OwnerReferences: []metav1.OwnerReference{{UID: "pool", Controller: ptr.To(true)}}}}
	if RecordUID(set); len(set.Annotations) > 0 {
		t.Errorf("annotations of a set of a deployment: %v", set.Annotations)
	}
}
