package nodecertificate

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A guest makes many requests in a short time and never joins. Only as many as the limit are decided, and only a few are
// considered again.
func TestLimits_OfToken(t *testing.T) {
	l := newLimits()
	var admitted, waiting, announced int
	for i := range 10_000 {
		got := l.admit("flood", types.UID(fmt.Sprint(i)), noon)
		if got.admitted {
			admitted++
		}
		if got.after > 0 {
			waiting++
		}
		if got.exceeded {
			announced++
		}
	}
	if admitted != maxOfToken || waiting != maxWaiting || announced != 1 {
		t.Errorf("admitted %d, waiting %d, announced %d", admitted, waiting, announced)
	}
	if !l.admit("other", "1", noon).admitted {
		t.Error("another guest's request is not decided")
	}
	if !l.admit("flood", "3", noon.Add(time.Hour)).admitted {
		t.Error("the retry of an admitted request is not admitted")
	}
	first, second := l.admit("flood", types.UID(fmt.Sprint(maxOfToken)), noon.Add(tokenInterval)), l.admit("flood", "late", noon.Add(tokenInterval))
	if !first.admitted || second.admitted || second.after != tokenInterval {
		t.Errorf("after the interval: %+v, %+v; want one admitted, and one that takes its place", first, second)
	}
}

// Requests that wait may be deleted.
func TestLimits_ForgetDeletedRequests(t *testing.T) {
	l := newLimits()
	for i := range maxOfToken + maxWaiting {
		l.admit("flood", types.UID(fmt.Sprint(i)), noon)
	}
	if got := l.admit("flood", "ignored", noon); got.after != 0 {
		t.Errorf("got %+v", got)
	}
	later := noon.Add(2*tokenInterval + time.Second)
	for i := range 2 { // the two that have become free
		if !l.admit("flood", types.UID(fmt.Sprint("new", i)), later).admitted {
			t.Error("not admitted")
		}
	}
	if got := l.admit("flood", "waits", later); got.after == 0 {
		t.Error("deleted requests still prevent others from waiting")
	}
}

func TestLimits_OfAllTokens(t *testing.T) {
	l := newLimits()
	for i := range burst {
		l.admit(fmt.Sprint("token", i), "1", noon)
	}
	got := l.admit("next", "1", noon)
	if got.admitted || got.after != totalPause || got.exceeded {
		t.Errorf("got %+v", got)
	}
	if !l.admit("next", "1", noon.Add(totalPause)).admitted {
		t.Error("not admitted later")
	}
}

func TestStrip_RequestsOfGuests(t *testing.T) {
	long := &certificatesv1.CertificateSigningRequest{}
	long.Spec.Request = bytes.Repeat([]byte("x"), 10*maxRequest)
	long.Annotations = map[string]string{"a": "b"}
	Strip(long)
	if _, unusual := requestedUser(&long.Spec); cap(long.Spec.Request) > 2*maxRequest || unusual == "" || long.Annotations == nil {
		t.Errorf("%d bytes remain, unusual: %q", cap(long.Spec.Request), unusual)
	}
	long.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied}}
	long.Status.Certificate = []byte("x")
	Strip(long)
	if len(long.Spec.Request)+len(long.Status.Certificate)+len(long.Annotations) > 0 {
		t.Error("a decided request keeps its content")
	}
	node := &corev1.Node{}
	if Strip(node) != any(node) {
		t.Error("another object was replaced")
	}
}
