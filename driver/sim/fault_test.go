package sim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestDriver_Faults(t *testing.T) {
	t.Run("codes in turn", func(t *testing.T) {
		w := newTestDriver(t, sim.Config{}, nil)
		w.Cloud().Fail(sim.Fault{Method: sim.CreateMachine, Machine: "m-*",
			Codes: []codes.Code{codes.Unavailable, codes.ResourceExhausted}})
		w.mustCreate("other")
		var got []codes.Code
		for range 3 {
			_, err := w.create("m-1")
			got = append(got, status.Code(err))
		}
		if diff := cmp.Diff([]codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.OK}, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("no effect before the failure", func(t *testing.T) {
		w := newTestDriver(t, sim.Config{}, nil)
		w.Cloud().Fail(sim.Fault{Method: sim.CreateMachine})
		_, err := w.create("m")
		wantCode(t, err, codes.Unavailable)
		if len(w.vms()) != 0 {
			t.Error("a failed call created a VM")
		}
	})
	t.Run("lost response", func(t *testing.T) {
		w := newTestDriver(t, sim.Config{}, nil)
		w.Cloud().Fail(sim.Fault{Method: sim.CreateMachine, Machine: "ns/m", Codes: []codes.Code{codes.DeadlineExceeded}, LostAnswer: true})
		_, err := w.create("m")
		wantCode(t, err, codes.DeadlineExceeded)
		if vms := w.vms(); len(vms) != 1 || vms[0].ProviderID != w.mustCreate("m").ProviderID {
			t.Errorf("got VMs %v after a lost response", vms)
		}
	})
	t.Run("one after another, unlimited, cleared", func(t *testing.T) {
		w := newTestDriver(t, sim.Config{}, nil)
		w.Cloud().Fail(sim.Fault{Method: sim.GetMachineStatus, Codes: []codes.Code{codes.Internal}})
		w.Cloud().Fail(sim.Fault{Codes: []codes.Code{codes.Aborted}, Times: -1})
		_, err := w.status("a", "")
		wantCode(t, err, codes.Internal)
		for range 3 {
			_, err = w.status("a", "")
			wantCode(t, err, codes.Aborted)
		}
		w.Cloud().ClearFaults()
		_, err = w.status("a", "")
		wantCode(t, err, codes.NotFound)
	})
	t.Run("hang", func(t *testing.T) {
		w := newTestDriver(t, sim.Config{}, nil)
		w.Cloud().Fail(sim.Fault{Hang: true, Times: -1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := w.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine("m", ""), MachineClass: w.class})
		wantCode(t, err, codes.DeadlineExceeded)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error("the context's error is not in the chain")
		}
	})
}

// TestFault_DependsOnlyOnSeed: with the same seed, the same calls fail in any order of calls. With another seed,
// other calls fail.
func TestFault_DependsOnlyOnSeed(t *testing.T) {
	const machines = 200
	run := func(seed uint64, backwards bool) []bool {
		w := newTestDriver(t, sim.Config{Seed: seed}, nil)
		w.Cloud().Fail(sim.Fault{Method: sim.CreateMachine, Rate: 0.3, Times: -1})
		failed := make([]bool, machines)
		for i := range failed {
			if backwards {
				i = machines - 1 - i
			}
			_, err := w.create(fmt.Sprintf("m-%d", i))
			failed[i] = err != nil
		}
		return failed
	}
	one := run(1, false)
	if diff := cmp.Diff(one, run(1, true)); diff != "" {
		t.Errorf("the order of calls changes the failed calls:\n%s", diff)
	}
	if cmp.Equal(one, run(2, false)) {
		t.Error("another seed fails the same calls")
	}
	count := 0
	for _, failed := range one {
		if failed {
			count++
		}
	}
	if count < machines*2/10 || count > machines*4/10 {
		t.Errorf("got %d failed calls of %d, want about 30%%", count, machines)
	}
}

// TestMachine_NeverHasTwoVMs: whichever calls fail and whichever responses are lost, a caller that retries gets exactly the
// one VM that it requested, or none after a deletion.
func TestMachine_NeverHasTwoVMs(t *testing.T) {
	tier.Check(t, func(rt *rapid.T) {
		w := newTestDriver(t, sim.Config{Seed: rapid.Uint64().Draw(rt, "seed")}, nil)
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		method := rapid.SampledFrom([]sim.Method{sim.CreateMachine, sim.DeleteMachine, sim.GetMachineStatus, ""})
		desired := map[string]bool{}
		rt.Repeat(map[string]func(*rapid.T){
			"fault": func(rt *rapid.T) {
				w.Cloud().Fail(sim.Fault{
					Method: method.Draw(rt, "method"), Machine: name.Draw(rt, "machine"),
					Times: rapid.IntRange(1, 3).Draw(rt, "times"), LostAnswer: rapid.Bool().Draw(rt, "lost"),
				})
			},
			"create": func(rt *rapid.T) {
				m := name.Draw(rt, "machine")
				desired[m] = true
				untilOK(rt, func() error { _, err := w.create(m); return err })
			},
			"delete": func(rt *rapid.T) {
				m := name.Draw(rt, "machine")
				delete(desired, m)
				untilOK(rt, func() error { return w.remove(m, "") })
			},
			"": func(rt *rapid.T) {
				vms, err := w.Cloud().VMs()
				if err != nil {
					rt.Fatal(err)
				}
				got := map[string]bool{}
				for _, v := range vms {
					if got[v.Machine] {
						rt.Fatalf("got two VMs for %s", v.Machine)
					}
					got[v.Machine] = true
				}
				if diff := cmp.Diff(desired, got); diff != "" {
					rt.Fatalf("VMs (-want +got):\n%s", diff)
				}
				entries, err := w.Cloud().Journal()
				if err != nil {
					rt.Fatal(err)
				}
				histories := sim.Histories(entries)
				for _, m := range slices.Sorted(maps.Keys(histories)) { // same order in every run
					if most := histories[m].MostAtOnce; most > 1 {
						rt.Fatalf("%s had %d VMs at the same time", m, most)
					}
				}
			},
		})
	})
}

// untilOK retries f, which the script fails a limited number of times.
func untilOK(rt *rapid.T, f func() error) {
	for range 1000 {
		if f() == nil {
			return
		}
	}
	rt.Fatal("the call never succeeded")
}
