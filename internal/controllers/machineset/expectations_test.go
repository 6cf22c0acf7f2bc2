package machineset

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func meta(m *v1alpha1.Machine) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: m.ObjectMeta}
}

// trusting are expectations of a set that was checked, with nothing expected.
func trusting() *writes {
	e := newExpectations()
	e.settle(request.NamespacedName, nil, nil)
	return e
}

func TestJudge(t *testing.T) {
	key := request.NamespacedName
	other := client.ObjectKey{Namespace: key.Namespace, Name: "other"}
	a := machine("a")
	again := machine("a", func(m *v1alpha1.Machine) { m.UID = "another" })
	for reason, test := range map[string]struct {
		given *writes
		do    func(*writes)
		owned []*v1alpha1.Machine
		after time.Duration
		want  verdict
	}{
		"never checked":                            {given: newExpectations(), want: unchecked},
		"never checked, and doubted":               {given: newExpectations(), do: func(e *writes) { e.doubt(key) }, want: doubtful},
		"never checked, with a deletion":           {given: newExpectations(), do: func(e *writes) { e.delete(key, a, noon) }, owned: []*v1alpha1.Machine{a}, want: unchecked},
		"trusted, with a deletion before":          {given: newExpectations(), do: func(e *writes) { e.delete(key, a, noon); e.trust(key) }, owned: []*v1alpha1.Machine{a}, want: behind},
		"doubted, then trusted":                    {given: newExpectations(), do: func(e *writes) { e.doubt(key); e.trust(key) }, want: doubtful},
		"nothing expected":                         {given: trusting(), want: complete},
		"a creation that is not seen":              {given: trusting(), do: func(e *writes) { e.create(key, "a", noon) }, want: behind},
		"for long":                                 {given: trusting(), do: func(e *writes) { e.create(key, "a", noon) }, after: 30 * time.Second, want: behind},
		"for too long":                             {given: trusting(), do: func(e *writes) { e.create(key, "a", noon) }, after: 31 * time.Second, want: doubtful},
		"a creation that is seen":                  {given: trusting(), do: func(e *writes) { e.create(key, "a", noon) }, owned: []*v1alpha1.Machine{a}, want: complete},
		"one of two creations seen":                {given: trusting(), do: func(e *writes) { e.create(key, "a", noon); e.create(key, "b", noon) }, owned: []*v1alpha1.Machine{a}, want: behind},
		"a deletion that is not seen":              {given: trusting(), do: func(e *writes) { e.delete(key, a, noon) }, owned: []*v1alpha1.Machine{a}, want: behind},
		"a deletion that is not seen for too long": {given: trusting(), do: func(e *writes) { e.delete(key, a, noon) }, owned: []*v1alpha1.Machine{a}, after: 31 * time.Second, want: doubtful},
		"a deletion that has begun":                {given: trusting(), do: func(e *writes) { e.delete(key, a, noon) }, owned: []*v1alpha1.Machine{machine("a", deleting)}, want: complete},
		"a deletion that is over":                  {given: trusting(), do: func(e *writes) { e.delete(key, a, noon) }, want: complete},
		"deleted and made again":                   {given: trusting(), do: func(e *writes) { e.delete(key, a, noon) }, owned: []*v1alpha1.Machine{again}, want: complete},
		"an unknown outcome":                       {given: trusting(), do: func(e *writes) { e.doubt(key) }, owned: []*v1alpha1.Machine{a}, want: doubtful},
		"a set that was forgotten":                 {given: trusting(), do: func(e *writes) { e.forget(key) }, want: unchecked},
		"what another set expects is its own":      {given: trusting(), do: func(e *writes) { e.create(other, "a", noon); e.doubt(other) }, want: complete},
	} {
		t.Run(reason, func(t *testing.T) {
			if test.do != nil {
				test.do(test.given)
			}
			for range 2 { // the second time says the same
				if got := test.given.judge(key, test.owned, noon.Add(test.after)); got != test.want {
					t.Errorf("got %d, want %d", got, test.want)
				}
			}
		})
	}
}

func TestSettle(t *testing.T) {
	key := request.NamespacedName
	a, b, leaving := machine("a"), machine("b"), machine("a", deleting)
	another := machine("a", func(m *v1alpha1.Machine) { m.UID = "another" })
	for reason, test := range map[string]struct {
		owned, live []*v1alpha1.Machine
		want        bool
	}{
		"none":                               {want: true},
		"the same":                           {[]*v1alpha1.Machine{a, b}, []*v1alpha1.Machine{b, a}, true},
		"the same, one being deleted":        {[]*v1alpha1.Machine{leaving}, []*v1alpha1.Machine{leaving}, true},
		"one is missing in the cache":        {[]*v1alpha1.Machine{a}, []*v1alpha1.Machine{a, b}, false},
		"one is gone, the cache has it":      {[]*v1alpha1.Machine{a, b}, []*v1alpha1.Machine{a}, false},
		"one is being deleted":               {[]*v1alpha1.Machine{a}, []*v1alpha1.Machine{leaving}, false},
		"the cache is ahead of the list":     {[]*v1alpha1.Machine{leaving}, []*v1alpha1.Machine{a}, false},
		"another machine with the same name": {[]*v1alpha1.Machine{a}, []*v1alpha1.Machine{another}, false},
	} {
		t.Run(reason, func(t *testing.T) {
			e := newExpectations()
			e.create(key, "never-seen", noon)
			var live []*metav1.PartialObjectMetadata
			for _, m := range test.live {
				live = append(live, meta(m))
			}
			if got := e.settle(key, test.owned, live); got != test.want {
				t.Errorf("got %t", got)
			}
			after := e.judge(key, test.owned, noon)
			if trusted := after == complete; trusted != test.want {
				t.Errorf("afterwards the verdict is %d", after)
			}
		})
	}
}
