package expectations_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

type children = expectations.Children

func child(name string, change ...func(*v1alpha1.Machine)) *v1alpha1.Machine {
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	for _, c := range change {
		c(machine)
	}
	return machine
}

func deleting(machine *v1alpha1.Machine) { machine.DeletionTimestamp = &metav1.Time{Time: noon} }

func another(machine *v1alpha1.Machine) { machine.UID = "another" }

func TestChildren_ComparedWithCache(t *testing.T) {
	t.Parallel()
	const late = 31 * time.Second
	create := func(names ...string) func(*children) {
		return func(c *children) {
			for _, name := range names {
				c.Created(child(name), noon)
			}
		}
	}
	remove := func(c *children) { c.Deleted(child("a"), noon) }
	uncertain := func(c *children) { c.Uncertain() }
	for reason, test := range map[string]struct {
		wrote  func(*children)
		cached []*v1alpha1.Machine
		after  time.Duration
		want   expectations.State
	}{
		"nothing written":                        {want: expectations.Current},
		"a creation not seen":                    {wrote: create("a"), want: expectations.Behind},
		"a creation not seen for long":           {wrote: create("a"), after: 30 * time.Second, want: expectations.Behind},
		"a creation not seen for too long":       {wrote: create("a"), after: late, want: expectations.Unknown},
		"a creation seen":                        {wrote: create("a"), cached: []*v1alpha1.Machine{child("a")}, want: expectations.Current},
		"a creation seen late":                   {wrote: create("a"), cached: []*v1alpha1.Machine{child("a")}, after: late, want: expectations.Current},
		"one of two creations seen":              {wrote: create("a", "b"), cached: []*v1alpha1.Machine{child("a")}, want: expectations.Behind},
		"a deletion not seen":                    {wrote: remove, cached: []*v1alpha1.Machine{child("a")}, want: expectations.Behind},
		"a deletion not seen for too long":       {wrote: remove, cached: []*v1alpha1.Machine{child("a")}, after: late, want: expectations.Unknown},
		"a deletion that has begun":              {wrote: remove, cached: []*v1alpha1.Machine{child("a", deleting)}, want: expectations.Current},
		"a deletion that is over":                {wrote: remove, want: expectations.Current},
		"deleted and recreated by others":        {wrote: remove, cached: []*v1alpha1.Machine{child("a", another)}, want: expectations.Current},
		"a write of unknown outcome":             {wrote: uncertain, want: expectations.Unknown},
		"a write of unknown outcome, and others": {wrote: func(c *children) { remove(c); uncertain(c) }, want: expectations.Unknown},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			var known children
			if test.wrote != nil {
				test.wrote(&known)
			}
			for range 2 { // checking changes nothing
				if got := known.Check(test.cached, noon.Add(test.after)); got != test.want {
					t.Errorf("got %d, want %d", got, test.want)
				}
			}
		})
	}
}

func TestChildren_ComparedWithAPIServer(t *testing.T) {
	t.Parallel()
	a, b, leaving := child("a"), child("b"), child("a", deleting)
	for reason, test := range map[string]struct {
		cached, live []*v1alpha1.Machine
		want         bool
	}{
		"none":                              {want: true},
		"equal":                             {[]*v1alpha1.Machine{a, b}, []*v1alpha1.Machine{b, a}, true},
		"equal, one being deleted":          {[]*v1alpha1.Machine{leaving}, []*v1alpha1.Machine{leaving}, true},
		"one is missing in the cache":       {[]*v1alpha1.Machine{a}, []*v1alpha1.Machine{a, b}, false},
		"one is gone, the cache has it":     {[]*v1alpha1.Machine{a, b}, []*v1alpha1.Machine{a}, false},
		"one is being deleted":              {[]*v1alpha1.Machine{a}, []*v1alpha1.Machine{leaving}, false},
		"the cache is ahead of the list":    {[]*v1alpha1.Machine{leaving}, []*v1alpha1.Machine{a}, false},
		"another object with the same name": {[]*v1alpha1.Machine{a}, []*v1alpha1.Machine{child("a", another)}, false},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			var known children
			known.Created(child("never-seen"), noon)
			known.Uncertain()
			var live []metav1.PartialObjectMetadata
			for _, machine := range test.live {
				live = append(live, metav1.PartialObjectMetadata{ObjectMeta: machine.ObjectMeta})
			}
			if got := known.Settle(test.cached, live); got != test.want {
				t.Errorf("got %t", got)
			}
			if after := known.Check(test.cached, noon); (after == expectations.Current) != test.want {
				t.Errorf("the state afterwards is %d", after)
			}
		})
	}
}
