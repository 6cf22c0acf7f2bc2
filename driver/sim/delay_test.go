package sim_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
)

func TestDriver_Delays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestDriver(t, sim.Config{}, object{"latency": "3s", "visibleAfter": "1m", "deleteDelay": "5m"})
		begin := time.Now()
		id := w.mustCreate("m").ProviderID
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("create took %s, want 3s", took)
		}
		_, err := w.status("m", "")
		wantCode(t, err, codes.NotFound)
		_, err = w.status("m", id)
		wantCode(t, err, codes.OK)
		if again := w.mustCreate("m").ProviderID; again != id {
			t.Error("an invisible VM was created a second time")
		}
		if list := w.list(); len(list) != 0 {
			t.Errorf("an invisible VM is listed: %v", list)
		}
		after(time.Minute)
		_, err = w.status("m", "")
		wantCode(t, err, codes.OK)

		w.mustRemove("m", id)
		w.mustRemove("m", id)
		_, err = w.status("m", id)
		wantCode(t, err, codes.OK)
		_, err = w.create("m")
		wantCode(t, err, codes.Aborted)
		if len(w.list()) != 1 {
			t.Error("a VM that is being deleted is not listed")
		}
		after(5 * time.Minute)
		_, err = w.status("m", id)
		wantCode(t, err, codes.NotFound)
		if len(w.list()) != 0 || len(w.vms()) != 0 {
			t.Error("the VM still exists after its deletion delay")
		}
		if h := w.histories()["ns/m"]; h.MostAtOnce != 1 || h.Left != 0 {
			t.Errorf("got history %+v", h)
		}
	})
}

func TestCapacity_IsFreedByDelayedDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestDriver(t, sim.Config{}, object{"capacity": 1, "deleteDelay": "1m"})
		w.mustCreate("a")
		w.mustRemove("a", "")
		_, err := w.create("b")
		wantCode(t, err, codes.ResourceExhausted)
		after(time.Minute)
		w.mustCreate("b")
	})
}

func TestDelay_HasJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := func(seed uint64, name string) time.Duration {
			w := newTestDriver(t, sim.Config{Seed: seed}, object{"latency": "10s", "jitter": 0.5})
			begin := time.Now()
			w.mustCreate(name)
			return time.Since(begin)
		}
		seen := map[time.Duration]bool{}
		for i := range 20 {
			name := fmt.Sprintf("m-%d", i)
			d := took(7, name)
			if d < 5*time.Second || d > 15*time.Second {
				t.Errorf("latency %s differs by more than half", d)
			}
			if d != took(7, name) {
				t.Error("the same seed results in a different latency")
			}
			seen[d] = true
		}
		if len(seen) < 15 {
			t.Errorf("got only %d different latencies of 20", len(seen))
		}
	})
}

// TestDelay_HasLongTail: with a long tail, about one call in twenty takes ten times as long.
func TestDelay_HasLongTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestDriver(t, sim.Config{Seed: 7}, object{"latency": "10s", "distribution": "longTail"})
		slow := 0
		for i := range 200 {
			begin := time.Now()
			w.mustCreate(fmt.Sprintf("m-%d", i))
			switch took := time.Since(begin); took {
			case 10 * time.Second:
			case 100 * time.Second:
				slow++
			default:
				t.Errorf("a call took %v", took)
			}
		}
		if slow < 4 || slow > 20 {
			t.Errorf("got %d slow calls of 200", slow)
		}
	})
}
