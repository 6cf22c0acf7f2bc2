package machineset

import (
	"errors"
	"maps"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func at(version string, changes ...change) change {
	return func(m *v1alpha1.Machine) {
		m.ResourceVersion = version
		for _, change := range changes {
			change(m)
		}
	}
}

func TestBaselineJudge(t *testing.T) {
	const set = types.UID("uid-of-pool")
	for reason, test := range map[string]struct {
		version     string
		live, owned []*v1alpha1.Machine
		want        verdict
	}{
		"nothing there":                           {"10", nil, nil, complete},
		"the same":                                {"10", []*v1alpha1.Machine{machine("a", at("7"))}, []*v1alpha1.Machine{machine("a", at("7"))}, complete},
		"the cache is newer":                      {"10", []*v1alpha1.Machine{machine("a", at("7"))}, []*v1alpha1.Machine{machine("a", at("12"))}, complete},
		"the cache is older":                      {"10", []*v1alpha1.Machine{machine("a", at("7"))}, []*v1alpha1.Machine{machine("a", at("6"))}, behind},
		"versions are numbers":                    {"100", []*v1alpha1.Machine{machine("a", at("10"))}, []*v1alpha1.Machine{machine("a", at("9"))}, behind},
		"made since":                              {"10", nil, []*v1alpha1.Machine{machine("a", at("11"))}, complete},
		"gone before":                             {"10", nil, []*v1alpha1.Machine{machine("a", at("9"))}, behind},
		"gone before, with the newest version":    {"10", nil, []*v1alpha1.Machine{machine("a", at("10"))}, behind},
		"still to come, or gone since":            {"10", []*v1alpha1.Machine{machine("a", at("7"))}, nil, doubtful},
		"one is to come, another is behind":       {"10", []*v1alpha1.Machine{machine("a", at("7")), machine("b", at("8"))}, []*v1alpha1.Machine{machine("b", at("3"))}, behind},
		"another set's are nothing to this":       {"10", []*v1alpha1.Machine{machine("a", at("7", stray))}, nil, complete},
		"the set's as it was: let go before that": {"10", []*v1alpha1.Machine{machine("a", at("7", stray))}, []*v1alpha1.Machine{machine("a", at("6"))}, behind},
		"versions that are no numbers":            {"x", nil, nil, doubtful},
		"no version":                              {"", nil, nil, doubtful},
	} {
		t.Run(reason, func(t *testing.T) {
			list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: test.version}}
			for _, m := range test.live {
				list.Items = append(list.Items, *meta(m))
			}
			if got := newBaseline(&metav1.PartialObjectMetadataList{}, list).judge(set, test.owned); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// TestBaselineNeverTrustsAnOldCache has a history of one set's Machines being written, a list
// taken at some time, and a cache that is at another. Only one that is no older is trusted;
// and one that is, unless a Machine is missing from it, is.
func TestBaselineNeverTrustsAnOldCache(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := []map[string]int{{}}
		for version := 1; version <= 20; version++ {
			now := maps.Clone(history[version-1])
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			if now[name] != 0 && rapid.Bool().Draw(t, "gone") {
				delete(now, name)
			} else {
				now[name] = version
			}
			history = append(history, now)
		}
		listed := rapid.IntRange(0, 20).Draw(t, "listed")
		cached := rapid.IntRange(0, 20).Draw(t, "cached")
		list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(listed + 1)}}
		for name, version := range history[listed] {
			list.Items = append(list.Items, *meta(machine(name, at(strconv.Itoa(version+1)))))
		}
		var owned []*v1alpha1.Machine
		for name, version := range history[cached] {
			owned = append(owned, machine(name, at(strconv.Itoa(version+1))))
		}
		missing := false
		for name := range history[listed] {
			missing = missing || history[cached][name] == 0
		}
		// A cache that shows the same as the list is as good, whatever came and went between.
		older := cached < listed && !maps.Equal(history[cached], history[listed])
		switch got := newBaseline(&metav1.PartialObjectMetadataList{}, list).judge("uid-of-pool", owned); {
		case got == complete && older:
			t.Fatalf("the cache at %d is trusted, the list is from %d: %v", cached, listed, history)
		case got != complete && cached >= listed && !missing:
			t.Fatalf("the cache at %d is not trusted (%d), the list is from %d: %v", cached, got, listed, history)
		}
	})
}

// TestOneLookServesAllSets: it is taken again only if it failed, and not at once.
func TestOneLookServesAllSets(t *testing.T) {
	var b baselines
	clock := clocktesting.NewFakePassiveClock(noon)
	reads, failure := 0, errors.New("away")
	read := func() (*baseline, error) {
		if reads++; failure != nil {
			return nil, failure
		}
		return &baseline{}, nil
	}
	fails := func(want int) {
		t.Helper()
		if known, err := b.of("default", clock, read); known != nil || err == nil || reads != want {
			t.Errorf("got %v and the error %v after %d reads, want %d", known, err, reads, want)
		}
	}
	fails(1)
	clock.SetTime(noon.Add(askAgain - 1))
	fails(1)
	clock.SetTime(noon.Add(askAgain))
	fails(2)
	failure = nil
	fails(2)
	if other, err := b.of("other", clock, read); other == nil || err != nil {
		t.Errorf("another namespace has the same failure: %v", err)
	}
	clock.SetTime(noon.Add(2 * askAgain))
	first, _ := b.of("default", clock, read)
	second, _ := b.of("default", clock, read)
	if first == nil || first != second || reads != 4 {
		t.Errorf("%d reads", reads)
	}
	if other, _ := b.of("other", clock, read); other == first || reads != 4 {
		t.Error("another namespace has the same answer")
	}
}

// TestBaselineShows: a set is awaited until it is shown, and then never again.
func TestBaselineShows(t *testing.T) {
	set := func(name, version string) *v1alpha1.MachineSet {
		return namedSet(name, func(set *v1alpha1.MachineSet) { set.ResourceVersion = version })
	}
	for reason, test := range map[string]struct {
		shown []*v1alpha1.MachineSet
		want  bool
	}{
		"as it was":                      {[]*v1alpha1.MachineSet{set("a", "10")}, true},
		"newer":                          {[]*v1alpha1.MachineSet{set("a", "11")}, true},
		"older":                          {[]*v1alpha1.MachineSet{set("a", "9")}, false},
		"another is older":               {[]*v1alpha1.MachineSet{set("b", "9")}, true},
		"made since":                     {[]*v1alpha1.MachineSet{set("c", "12")}, true},
		"older, after others were shown": {[]*v1alpha1.MachineSet{set("b", "8"), set("c", "12"), set("a", "9")}, false},
		"older than what was shown: a server that was restored": {[]*v1alpha1.MachineSet{set("a", "10"), set("a", "7")}, true},
		"a version that is no number":                           {[]*v1alpha1.MachineSet{set("a", "x")}, true},
	} {
		t.Run(reason, func(t *testing.T) {
			sets := &metav1.PartialObjectMetadataList{}
			for name, version := range map[string]string{"a": "10", "b": "8"} {
				sets.Items = append(sets.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}})
			}
			baseline, got := newBaseline(sets, &metav1.PartialObjectMetadataList{}), false
			for _, set := range test.shown {
				got = baseline.shows(set)
			}
			if got != test.want {
				t.Errorf("it is shown: %t", got)
			}
		})
	}
}

// TestOwnDeletionsOutlastTheBaseline: a set that is being deleted deletes its Machines before
// it can count them. The baseline is older than that.
func TestOwnDeletionsOutlastTheBaseline(t *testing.T) {
	s := newServer(newSet(1), machine("a"))
	c := s.newController()
	c.expected.delete(request.NamespacedName, s.shown["a"], noon)
	f, err := c.gather(t.Context(), s.set())
	if err != nil || f.certain {
		t.Fatalf("certain: %t, error: %v, though the cache does not show a deletion", f.certain, err)
	}
	must(s.live.Delete(t.Context(), s.all()["a"]))
	s.catchUp()
	if f, err := c.gather(t.Context(), s.set()); err != nil || !f.certain || s.lists != 1 {
		t.Errorf("certain: %t, error: %v, %d lists", f.certain, err, s.lists)
	}
}
