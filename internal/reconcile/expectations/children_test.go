package expectations_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

type children = expectations.Children[*corev1.Node]

func child(name string, change ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	for _, c := range change {
		c(node)
	}
	return node
}

func deleting(node *corev1.Node) { node.DeletionTimestamp = &metav1.Time{Time: noon} }

func another(node *corev1.Node) { node.UID = "another" }

func TestChildrenAgainstTheCache(t *testing.T) {
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
	doubt := func(c *children) { c.Doubt() }
	for reason, test := range map[string]struct {
		wrote  func(*children)
		cached []*corev1.Node
		after  time.Duration
		want   expectations.State
	}{
		"nothing written":                        {want: expectations.Current},
		"a creation not seen":                    {wrote: create("a"), want: expectations.Behind},
		"a creation not seen for long":           {wrote: create("a"), after: 30 * time.Second, want: expectations.Behind},
		"a creation not seen for too long":       {wrote: create("a"), after: late, want: expectations.Unknown},
		"a creation seen":                        {wrote: create("a"), cached: []*corev1.Node{child("a")}, want: expectations.Current},
		"a creation seen late":                   {wrote: create("a"), cached: []*corev1.Node{child("a")}, after: late, want: expectations.Current},
		"one of two creations seen":              {wrote: create("a", "b"), cached: []*corev1.Node{child("a")}, want: expectations.Behind},
		"a deletion not seen":                    {wrote: remove, cached: []*corev1.Node{child("a")}, want: expectations.Behind},
		"a deletion not seen for too long":       {wrote: remove, cached: []*corev1.Node{child("a")}, after: late, want: expectations.Unknown},
		"a deletion that has begun":              {wrote: remove, cached: []*corev1.Node{child("a", deleting)}, want: expectations.Current},
		"a deletion that is over":                {wrote: remove, want: expectations.Current},
		"deleted and created again by others":    {wrote: remove, cached: []*corev1.Node{child("a", another)}, want: expectations.Current},
		"a write of unknown outcome":             {wrote: doubt, want: expectations.Unknown},
		"a write of unknown outcome, and others": {wrote: func(c *children) { remove(c); doubt(c) }, want: expectations.Unknown},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			var known children
			if test.wrote != nil {
				test.wrote(&known)
			}
			for range 2 { // asking changes nothing
				if got := known.Check(test.cached, noon.Add(test.after)); got != test.want {
					t.Errorf("got %d, want %d", got, test.want)
				}
			}
		})
	}
}

func TestChildrenAgainstTheAPIServer(t *testing.T) {
	t.Parallel()
	a, b, leaving := child("a"), child("b"), child("a", deleting)
	for reason, test := range map[string]struct {
		cached, live []*corev1.Node
		want         bool
	}{
		"none":                              {want: true},
		"the same":                          {[]*corev1.Node{a, b}, []*corev1.Node{b, a}, true},
		"the same, one being deleted":       {[]*corev1.Node{leaving}, []*corev1.Node{leaving}, true},
		"one is missing in the cache":       {[]*corev1.Node{a}, []*corev1.Node{a, b}, false},
		"one is gone, the cache has it":     {[]*corev1.Node{a, b}, []*corev1.Node{a}, false},
		"one is being deleted":              {[]*corev1.Node{a}, []*corev1.Node{leaving}, false},
		"the cache is ahead of the list":    {[]*corev1.Node{leaving}, []*corev1.Node{a}, false},
		"another object with the same name": {[]*corev1.Node{a}, []*corev1.Node{child("a", another)}, false},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			var known children
			known.Created(child("never-seen"), noon)
			known.Doubt()
			var live []metav1.PartialObjectMetadata
			for _, node := range test.live {
				live = append(live, metav1.PartialObjectMetadata{ObjectMeta: node.ObjectMeta})
			}
			if got := known.Settle(test.cached, live); got != test.want {
				t.Errorf("got %t", got)
			}
			if after := known.Check(test.cached, noon); (after == expectations.Current) != test.want {
				t.Errorf("afterwards the cache is %d", after)
			}
		})
	}
}
