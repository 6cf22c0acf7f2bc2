package expectations_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

func at(name, version string) client.Object {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

func TestWrites(t *testing.T) {
	cases := map[string]struct {
		reason string
		wrote  []string
		seen   string
		want   bool
	}{
		"nothing written":    {"a key without writes is fresh", nil, "7", true},
		"cache behind":       {"the cache has not seen the write", []string{"10"}, "9", false},
		"cache at the write": {"the cache has just seen the write", []string{"10"}, "10", true},
		"newest counts":      {"writes may be recorded out of order", []string{"12", "9"}, "11", false},
		"not comparable":     {"a server with opaque versions never holds a controller back", []string{"abc"}, "9", true},
		"longer is newer":    {"versions are numbers, not texts", []string{"100"}, "99", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var writes expectations.Writes
			for _, version := range tc.wrote {
				writes.Wrote(at("key", version))
			}
			if got := writes.Fresh(at("key", tc.seen)); got != tc.want {
				t.Errorf("%s: Fresh = %v, want %v", tc.reason, got, tc.want)
			}
			if !writes.Fresh(at("other", "1")) {
				t.Error("the write of one key holds back another")
			}
			writes.Forget(client.ObjectKey{Name: "key"})
			if !writes.Fresh(at("key", "1")) {
				t.Error("a forgotten key is not fresh")
			}
		})
	}
}
