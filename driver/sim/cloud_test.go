package sim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
)

// clouds returns a cloud in memory and a cloud in a directory.
func clouds(t *testing.T) map[string]*sim.Cloud {
	t.Helper()
	return map[string]*sim.Cloud{
		"memory":    sim.NewCloud(sim.CloudOptions{}),
		"directory": openCloud(t, t.TempDir()),
	}
}

func openCloud(t testing.TB, dir string) *sim.Cloud {
	t.Helper()
	cloud, err := sim.OpenCloud(dir, sim.CloudOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	return cloud
}

func TestCreate_ConcurrentCallsCreateOneVM(t *testing.T) {
	dir := t.TempDir()
	memory := sim.NewCloud(sim.CloudOptions{})
	tests := map[string][]*sim.Cloud{
		"memory":          {memory, memory},
		"one handle":      {openCloud(t, t.TempDir())},
		"several handles": {openCloud(t, dir), openCloud(t, dir), openCloud(t, dir)},
	}
	for name, handles := range tests {
		t.Run(name, func(t *testing.T) {
			var drivers []testDriver
			for _, cloud := range handles {
				drivers = append(drivers, newTestDriver(t, sim.Config{Cloud: cloud}, nil))
			}
			ids := make([]string, 50)
			var wg sync.WaitGroup
			for i := range ids {
				wg.Go(func() {
					resp, err := drivers[i%len(drivers)].create("m")
					if err != nil {
						t.Error(err)
						return
					}
					ids[i] = resp.ProviderID
				})
			}
			wg.Wait()
			for _, id := range ids {
				if id != ids[0] {
					t.Fatalf("got two VMs: %s and %s", ids[0], id)
				}
			}
			for _, w := range drivers {
				if vms := w.vms(); len(vms) != 1 {
					t.Errorf("got %d VMs, want 1", len(vms))
				}
				if h := w.histories()["ns/m"]; h.MostAtOnce != 1 || h.Calls[sim.CreateMachine] != 50 {
					t.Errorf("got history %+v", h)
				}
			}
		})
	}
}

func TestCloud_SurvivesInDirectory(t *testing.T) {
	dir := t.TempDir()
	first, err := sim.OpenCloud(dir, sim.CloudOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := newTestDriver(t, sim.Config{Cloud: first}, object{"tags": object{"a": "b"}})
	w.mustCreate("gone")
	w.mustRemove("gone", "")
	id := w.mustCreate("stays").ProviderID
	before := w.vms()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	w = newTestDriver(t, sim.Config{Cloud: openCloud(t, dir)}, object{"tags": object{"a": "b"}})
	if diff := cmp.Diff(before, w.vms()); diff != "" {
		t.Errorf("VMs before and after (-before +after):\n%s", diff)
	}
	if got := w.mustCreate("stays").ProviderID; got != id {
		t.Errorf("got VM %s, want the existing VM %s", got, id)
	}
	if got := w.mustCreate("gone").ProviderID; !strings.HasPrefix(got, "sim:///ns/gone/2-") {
		t.Errorf("got ID %s for the second VM of a name", got)
	}
	if got := len(w.histories()["ns/gone"].ProviderIDs); got != 2 {
		t.Errorf("journal contains %d VMs, want 2", got)
	}
}

// TestJournal_IgnoresIncompleteLastLine: if the writer was killed within a line, all other lines are used.
func TestJournal_IgnoresIncompleteLastLine(t *testing.T) {
	dir := t.TempDir()
	w := newTestDriver(t, sim.Config{Cloud: openCloud(t, dir)}, nil)
	w.mustCreate("m")
	before := w.histories()
	journal, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	if _, err := journal.WriteString(`{"machine":"ns/m","effect":"dele`); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, w.histories()); diff != "" {
		t.Error(diff)
	}
}

func TestCloud_HoldsFiveThousandVMs(t *testing.T) {
	const count = 5000
	w := newTestDriver(t, sim.Config{}, object{"capacity": count})
	forEach(t, count, func(name string) error { _, err := w.create(name); return err })
	if list := w.list(); len(list) != count {
		t.Errorf("got %d VMs in the list, want %d", len(list), count)
	}
	_, err := w.create("one-more")
	wantCode(t, err, codes.ResourceExhausted)
	forEach(t, count, func(name string) error { _, err := w.status(name, ""); return err })
	forEach(t, count, func(name string) error { return w.remove(name, "") })
	if vms := w.vms(); len(vms) != 0 {
		t.Errorf("%d VMs still exist", len(vms))
	}
	histories := w.histories()
	delete(histories, "ns/one-more")
	if len(histories) != count {
		t.Errorf("got %d machines in the journal, want %d", len(histories), count)
	}
	for m, h := range histories {
		if h.MostAtOnce != 1 || len(h.ProviderIDs) != 1 || h.Left != 0 {
			t.Errorf("history of %s: %+v", m, h)
		}
	}
}

// forEach calls f with the names of count machines, fifty calls at a time.
func forEach(t *testing.T, count int, f func(name string) error) {
	var wg sync.WaitGroup
	for part := range 50 {
		wg.Go(func() {
			for i := part; i < count; i += 50 {
				if err := f(fmt.Sprintf("m-%d", i)); err != nil {
					t.Errorf("m-%d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}
