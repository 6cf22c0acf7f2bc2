package inuse

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSet checks, among others, that an object that is being deleted gets no finalizer but may lose one.
func TestSet(t *testing.T) {
	t.Parallel()
	const finalizer = "example.com/in-use"
	now := metav1.Now()
	for name, tc := range map[string]struct {
		finalizers []string
		deleting   bool
		used       bool
		want, news bool
	}{
		"used":                    {used: true, want: true, news: true},
		"still used":              {finalizers: []string{finalizer}, used: true, want: true},
		"unused":                  {finalizers: []string{finalizer}, news: true},
		"still unused":            {},
		"used after its deletion": {deleting: true, used: true},
		"used while deleted":      {finalizers: []string{finalizer}, deleting: true, used: true, want: true},
		"unused while deleted":    {finalizers: []string{finalizer}, deleting: true, news: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Finalizers: tc.finalizers}}
			if tc.deleting {
				object.DeletionTimestamp = &now
			}
			if news := Set(object, finalizer, tc.used); news != tc.news || (len(object.Finalizers) == 1) != tc.want {
				t.Errorf("changed: %t, finalizers: %v; want %t, %t", news, object.Finalizers, tc.news, tc.want)
			}
		})
	}
}
