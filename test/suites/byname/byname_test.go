package byname

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(log.Log.WithSink(log.NullLogSink{}))
	m.Run()
}

// story is a harness with the operations performed in it.
type story struct {
	*harness
	// innocent are the original Machines that were neither marked, nor Failed, nor deleted manually. The value
	// has no meaning.
	innocent map[string]bool
	named    []string
}

func newStory(replicas int32) *story {
	s := &story{newHarness(replicas), map[string]bool{}, nil}
	for _, machine := range s.machines() {
		s.innocent[machine.Name] = true
	}
	return s
}

// name does what an autoscaler does: with one write, it marks Machines, reduces the replicas accordingly, and
// records the time.
func (s *story) name(old bool, names ...string) {
	s.step()
	now := s.clock.Now().Format(time.RFC3339)
	var entries []string
	for _, name := range names {
		delete(s.innocent, name)
		s.named = append(s.named, name)
		entry := name + "~" + now
		if old {
			entry = name
		}
		entries = append(entries, entry)
	}
	s.change(func(d *v1alpha1.MachineDeployment) {
		if before := d.Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; before != "" {
			entries = append([]string{before}, entries...)
		}
		d.Spec.Replicas -= int32(len(names))
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, strings.Join(entries, ","))
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, now)
	})
}

// fail makes an existing Machine Failed.
func (s *story) fail(name string) {
	delete(s.innocent, name)
	s.phase(name, v1alpha1.MachineFailed)
}

// remove deletes a Machine manually.
func (s *story) remove(name string) {
	delete(s.innocent, name)
	must(s.live.Delete(ctx, s.machine(name)))
}

// wrong returns violations of the invariants.
func (s *story) wrong() string {
	for _, name := range s.deleted {
		if s.innocent[name] {
			return "machine " + name + " was deleted although it was not named"
		}
	}
	return ""
}

// wrongAtLast is like wrong, with the conditions of the settled state.
func (s *story) wrongAtLast() string {
	if wrong := s.wrong(); wrong != "" {
		return wrong
	}
	for _, name := range s.named {
		if s.machine(name) != nil {
			return "machine " + name + " is there, which was named"
		}
	}
	deployment := s.deployment()
	if text, ok := deployment.Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; ok {
		return fmt.Sprintf("the annotation is still %q", text)
	}
	if n := len(s.machines()); n != int(deployment.Spec.Replicas) {
		return fmt.Sprintf("there are %d machines, want %d", n, deployment.Spec.Replicas)
	}
	return ""
}

// TestStories checks what happens to a Machine that was marked: before the mark reaches it, before its MachineSet
// is scaled, and before its MachineSet deletes it.
func TestStories(t *testing.T) {
	for when, passes := range map[string]func(*story) error{
		"before it is marked":      func(*story) error { return nil },
		"before its set is scaled": func(s *story) error { return s.passDeployment() },
		"before its set deletes it": func(s *story) error {
			for range 3 {
				s.catchUp()
				if err := s.passDeployment(); err != nil {
					return err
				}
			}
			return nil
		},
		"before its set has seen that": func(s *story) error {
			for range 3 {
				s.catchUp()
				if err := s.passDeployment(); err != nil {
					return err
				}
			}
			s.show("sets")
			return s.passSets()
		},
	} {
		for what, happens := range map[string]func(*story, string){
			"it stays":  func(*story, string) {},
			"it fails":  (*story).fail,
			"it leaves": (*story).remove,
			"it is gone": func(s *story, name string) {
				s.remove(name)
				s.vanish(s.machine(name))
			},
		} {
			for form, old := range map[string]bool{"": false, ", old form": true} {
				for _, late := range append([]string{"none"}, kinds...) {
					t.Run(fmt.Sprintf("%s %s%s, %s are shown late", what, when, form, late), func(t *testing.T) {
						s := newStory(3)
						chosen := s.machines()[2].Name // sorted by age, so the MachineSet would select another one
						s.name(old, chosen)
						s.catchUp()
						ok(t, passes(s))
						if is := s.machine(chosen); is != nil && is.DeletionTimestamp.IsZero() {
							happens(s, chosen)
						}
						for range 2 {
							s.catchUp(late)
							ok(t, s.passSets(), s.passDeployment())
						}
						ok(t, s.rest())
						if wrong := s.wrongAtLast(); wrong != "" {
							t.Error(wrong)
						}
					})
				}
			}
		}
	}
}

// catchUp updates the cache of all kinds, except the given ones.
func (s *story) catchUp(without ...string) {
	for _, kind := range kinds {
		if !slices.Contains(without, kind) {
			s.show(kind)
		}
	}
}

// TestMachineSet_DeletesOnlyNamedMachines checks that only marked Machines are deleted, for any events in between, any order of
// reconciles, and any staleness of the cache. New Machines do not join before the end, because a joined Machine
// is equivalent to any other, and may be deleted instead of one that is already gone.
func TestMachineSet_DeletesOnlyNamedMachines(t *testing.T) {
	tier.Check(t, func(t *rapid.T) {
		s := newStory(rapid.Int32Range(2, 5).Draw(t, "replicas"))
		pick := func(t *rapid.T, names []string) string {
			if len(names) == 0 {
				t.Skip("none is left")
			}
			return rapid.SampledFrom(names).Draw(t, "machine")
		}
		working := func(names []string) []string {
			return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
				is := s.machine(name)
				return is == nil || !is.DeletionTimestamp.IsZero() || is.Status.CurrentStatus.Phase != v1alpha1.MachineRunning
			})
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if wrong := s.wrong(); wrong != "" {
					t.Fatal(wrong)
				}
			},
			"name": func(t *rapid.T) {
				all := slices.Sorted(maps.Keys(s.innocent))
				first := pick(t, all)
				names := []string{first}
				if rapid.Bool().Draw(t, "two") {
					names = append(names, pick(t, slices.DeleteFunc(all, func(name string) bool { return name == first })))
				}
				s.name(rapid.Bool().Draw(t, "old form"), names...)
			},
			"grow":          func(*rapid.T) { s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas++ }) },
			"fail":          func(t *rapid.T) { s.fail(pick(t, working(s.named))) },
			"another fails": func(t *rapid.T) { s.fail(pick(t, working(slices.Sorted(maps.Keys(s.innocent))))) },
			"remove":        func(t *rapid.T) { s.remove(pick(t, working(s.named))) },
			"deployment":    func(t *rapid.T) { ok(t, s.passDeployment()) },
			"sets":          func(t *rapid.T) { ok(t, s.passSets()) },
			"show":          func(t *rapid.T) { s.show(rapid.SampledFrom(kinds).Draw(t, "kind")) },
			"show all":      func(*rapid.T) { s.catchUp() },
			"restart":       func(*rapid.T) { s.restart() },
			"a second":      func(*rapid.T) { s.step() },
			"one has left": func(t *rapid.T) {
				for _, machine := range s.machines() {
					if !machine.DeletionTimestamp.IsZero() {
						s.vanish(machine)
						return
					}
				}
				t.Skip("none leaves")
			},
		})
		ok(t, s.rest())
		if wrong := s.wrongAtLast(); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// fatal is implemented by both kinds of tests.
type fatal interface {
	Helper()
	Fatal(args ...any)
}

func ok(t fatal, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
