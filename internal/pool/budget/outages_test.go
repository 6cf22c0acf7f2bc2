package budget

import (
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestOutages checks in which zones no new Machines are created.
func TestOutages(t *testing.T) {
	const memory = 10 * time.Minute
	ago := func(age time.Duration) Outages { return Outages{"a": metav1.NewTime(now.Add(-age))} }
	for name, test := range map[string]struct {
		pool  Pool
		known Outages
		want  Outages
	}{
		"empty":                                {pool: pool()},
		"all unhealthy":                        {pool: pool(in("a", unknown), in("a", unknown)), want: ago(0)},
		"one healthy":                          {pool: pool(in("a", unknown), in("a", unknown), in("a", running))},
		"one healthy, after an outage":         {pool: pool(in("a", unknown), in("a", unknown), in("a", running)), known: ago(time.Second)},
		"one may become healthy":               {pool: pool(in("a", unknown), in("a", unknown), in("a", ""))},
		"one alone":                            {pool: pool(in("a", unknown))},
		"replaced":                             {pool: pool(deleted(in("a", failed), false), deleted(in("a", failed), false)), want: ago(0)},
		"scaled down":                          {pool: pool(deleted(in("a", running), true), deleted(in("a", running), true))},
		"the last one":                         {pool: pool(deleted(in("a", failed), false)), known: ago(time.Minute), want: ago(time.Minute)},
		"the last one, seen again":             {pool: pool(deleted(in("a", failed), false)), known: ago(6 * time.Minute), want: ago(0)},
		"the last one, after a long time":      {pool: pool(deleted(in("a", failed), false)), known: ago(time.Hour), want: ago(0)},
		"all of them gone":                     {pool: pool(in("b", running)), known: ago(6 * time.Minute), want: ago(6 * time.Minute)},
		"all of them gone, for a long time":    {pool: pool(in("b", running)), known: ago(memory)},
		"seen by a clock that is a bit ahead":  {pool: pool(), known: ago(-time.Minute), want: ago(-time.Minute)},
		"seen in a future that is far away":    {pool: pool(), known: ago(-time.Hour)},
		"a zone of no class":                   {pool: pool(), known: Outages{"c": metav1.NewTime(now)}},
		"another zone does not matter":         {pool: pool(in("b", unknown)), known: ago(0), want: ago(0)},
		"two unhealthy ones, and it was known": {pool: pool(in("a", unknown), in("a", unknown)), known: ago(4 * time.Minute), want: ago(4 * time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.pool.Outages([]string{"a", "b"}, test.known, memory); !got.Equal(test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestOutages_Annotate checks that outages are written to a set's annotation, read from it, and removed from
// it.
func TestOutages_Annotate(t *testing.T) {
	set := &v1alpha1.MachineSet{}
	Outages{}.Annotate(set)
	if set.Annotations != nil {
		t.Errorf("without an outage, the annotations are %v", set.Annotations)
	}
	set.Annotations = map[string]string{"other": "yes"}
	shared := set.DeepCopy()
	shared.Annotations = set.Annotations
	outages := pool(in("a", unknown), in("a", unknown)).Outages([]string{"a"}, nil, time.Hour)
	outages.Annotate(set)
	if got := OutagesOf(set); !got.Equal(outages) {
		t.Errorf("read %v, and %v was written: %v", got, outages, set.Annotations)
	}
	if len(shared.Annotations) != 1 {
		t.Error("annotations that another object has are changed")
	}
	outages = nil
	outages.Annotate(set)
	if !maps.Equal(set.Annotations, map[string]string{"other": "yes"}) {
		t.Errorf("after the outage, the annotations are %v", set.Annotations)
	}
	for _, text := range []string{"yes", "[]", `{"a":1}`, `{"a":"yesterday"}`} {
		set.Annotations[v1alpha1.AnnotationKeyZonesOut] = text
		if got := OutagesOf(set); len(got) > 0 {
			t.Errorf("%s is read as %v", text, got)
		}
	}
}
