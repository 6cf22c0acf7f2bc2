package reserve_test

import (
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestSetting_IsNilWithoutFieldAndAnnotation(t *testing.T) {
	t.Parallel()
	if got := reserve.Setting(fixture.Deployment(3)); got != nil {
		t.Errorf("got %v, want nil", got)
	}
}

func TestMost_IgnoresInvalidAnnotation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		most  int32
		known bool
	}{
		"": {0, false}, "x": {0, false}, "-1": {-1, false}, "0": {0, true}, "1": {1, true}, "99999999999": {1<<31 - 1, false},
	} {
		d := fixture.Deployment(0)
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyAutoscalerMaxSize: text}
		if most, known := reserve.Most(d); known != want.known || known && most != want.most {
			t.Errorf("%q: %d, known %t, want %d, %t", text, most, known, want.most, want.known)
		}
	}
}

func TestOfSet_IgnoresInvalidAnnotation(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int32{"": 0, "x": 0, "-1": 0, "2": 2, "4": 3, "99999999999": 0} {
		set := fixture.Set("a", 3)
		set.Annotations[v1alpha1.AnnotationKeyExcessReplicas] = text
		if got := reserve.OfSet(set); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
