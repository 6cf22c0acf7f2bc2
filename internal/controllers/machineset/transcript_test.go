package machineset

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestMachineSet_Transcripts records the events and the status of a set in several scenarios.
func TestMachineSet_Transcripts(t *testing.T) {
	running := func(f *fleet) { f.fate(v1alpha1.MachineRunning, v1alpha1.MachineOperationCreate) }
	fail := func(f *fleet) { f.wait(time.Minute); f.fate(v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate) }
	type act struct {
		name string
		do   func(*fleet)
	}
	for file, acts := range map[string][]act{
		"scale.golden": {
			{"the set is created with 3 replicas", func(*fleet) {}},
			{"they join", running},
			{"scaled to 5", func(f *fleet) { f.scale(5) }},
			{"they join", running},
			{"one is named for deletion, and the set is scaled to 4", func(f *fleet) {
				m := f.all()["pool-0003"]
				marked(f.clock.Now())(m)
				must(f.live.Update(testContext, m))
				set := f.set()
				metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, f.clock.Now().Format(time.RFC3339))
				must(f.live.Update(testContext, set))
				f.scale(4)
			}},
			{"the deletion completes", (*fleet).bury},
			{"scaled to 0", func(f *fleet) { f.scale(0) }},
			{"the deletions complete", (*fleet).bury},
		},
		"broken-class.golden": {
			{"the set is created with 3 replicas", func(*fleet) {}},
			{"they fail", fail},
			{"the deletions complete", (*fleet).bury},
			{"they fail again", fail},
			{"the deletions complete, and seconds pass", func(f *fleet) { f.bury(); f.wait(2 * time.Second) }},
			{"they fail again", fail},
			{"ten seconds pass", func(f *fleet) { f.bury(); f.wait(10 * time.Second) }},
			{"they join", running},
		},
		"overshoot.golden": {
			{"the set is created with 2 replicas", func(f *fleet) { f.scale(2) }},
			{"another client creates 7 more", func(f *fleet) {
				for _, m := range machines(7) {
					must(f.live.Create(testContext, m))
				}
			}},
			{"the deletions complete", (*fleet).bury},
			{"the remaining machines fail", fail},
			{"the deletions complete", (*fleet).bury},
		},
	} {
		t.Run(file, func(t *testing.T) {
			f := newFleet(newSet(3))
			f.overshoot = &Overshoot{Up: 2, Down: 1}
			f.controller = f.newController()
			var text strings.Builder
			for _, act := range acts {
				act.do(f)
				f.catchUp()
				fmt.Fprintf(&text, "%s\n", act.name)
				f.events.lines = nil
				for range 3 {
					f.step(t)
					f.wait(time.Second)
				}
				for _, line := range f.events.lines {
					fmt.Fprintf(&text, "  %s\n", line)
				}
				status := f.set().Status
				fmt.Fprintf(&text, "  status: %d exist, %d available\n", status.Replicas, status.AvailableReplicas)
			}
			golden(t, file, text.String())
		})
	}
}

var rewrite = flag.Bool("update", false, "rewrite the golden files")

// golden compares a text with a golden file.
func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *rewrite {
		must(os.MkdirAll("testdata", 0o755))
		must(os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("want - got + (go test -update rewrites the file)\n%s", diff)
	}
}
