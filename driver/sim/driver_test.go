package sim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("code is %v, want %v (%v)", got, want, err)
	}
}

// TestLifeOfAVM runs on a cloud in memory and on one in a directory.
func TestLifeOfAVM(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sim.Config{Cloud: cloud}, nil)

			_, err := w.status("m", "")
			wantCode(t, err, codes.NotFound)

			made := w.mustCreate("m")
			if made.NodeName != "m" || !strings.HasPrefix(made.ProviderID, "sim:///ns/m/1-") || len(made.Addresses) == 0 {
				t.Errorf("answer to create is %+v", made)
			}
			if again := w.mustCreate("m"); !cmp.Equal(made, again) {
				t.Errorf("create is not idempotent: %s", cmp.Diff(made, again))
			}

			for _, id := range []string{"", made.ProviderID} {
				found, err := w.status("m", id)
				wantCode(t, err, codes.OK)
				want := &driver.GetMachineStatusResponse{ProviderID: made.ProviderID, NodeName: "m", Addresses: made.Addresses}
				if diff := cmp.Diff(want, found); diff != "" {
					t.Errorf("status with ID %q (-want +got):\n%s", id, diff)
				}
			}
			if diff := cmp.Diff(map[string]string{made.ProviderID: "m"}, w.list()); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}

			w.mustRemove("m", made.ProviderID)
			w.mustRemove("m", made.ProviderID)
			w.mustRemove("m", "")
			_, err = w.status("m", made.ProviderID)
			wantCode(t, err, codes.NotFound)
			if list := w.list(); len(list) != 0 {
				t.Errorf("list after deletion: %v", list)
			}

			second := w.mustCreate("m")
			if second.ProviderID == made.ProviderID {
				t.Error("a second VM of the same name has the same provider ID")
			}
			_, err = w.status("m", made.ProviderID)
			wantCode(t, err, codes.NotFound)
			w.mustRemove("m", made.ProviderID)
			if len(w.vms()) != 1 {
				t.Error("deleting the first VM's ID removed the second VM")
			}
			w.mustRemove("m", "")
			want := sim.History{
				ProviderIDs: []string{made.ProviderID, second.ProviderID}, MostAtOnce: 1, Left: 0,
				Calls: map[sim.Method]int{sim.CreateMachine: 3, sim.DeleteMachine: 5, sim.GetMachineStatus: 5},
			}
			if diff := cmp.Diff(want, w.histories()["ns/m"]); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
		})
	}
}

// clouds returns one cloud of each kind.
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

func TestForeignVMsAreLeftAlone(t *testing.T) {
	tests := map[string]struct{ mine, other object }{
		"other pool":  {object{"pool": "a"}, object{"pool": "b"}},
		"other tag":   {object{"pool": "a", "tags": object{"cluster": "x"}}, object{"pool": "a", "tags": object{"cluster": "y"}}},
		"missing tag": {object{"pool": "a"}, object{"pool": "a", "tags": object{"cluster": "y"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			mine := newWorld(t, sim.Config{}, tt.mine)
			other := mine.with(newClass(t, "other", tt.other))
			id := mine.mustCreate("m").ProviderID

			_, err := other.create("m")
			wantCode(t, err, codes.AlreadyExists)
			for _, id := range []string{"", id} {
				_, err = other.status("m", id)
				wantCode(t, err, codes.NotFound)
				other.mustRemove("m", id)
			}
			if list := other.list(); len(list) != 0 {
				t.Errorf("the other class lists %v", list)
			}
			if vms := mine.vms(); len(vms) != 1 || vms[0].ProviderID != id {
				t.Errorf("VMs are %v, want only %s", vms, id)
			}
		})
	}
}

func TestClassesWithoutPoolDoNotMix(t *testing.T) {
	a := newWorld(t, sim.Config{}, nil)
	b := a.with(newClass(t, "large", nil))
	idA, idB := a.mustCreate("a").ProviderID, b.mustCreate("b").ProviderID
	if diff := cmp.Diff(map[string]string{idA: "a"}, a.list()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{idB: "b"}, b.list()); diff != "" {
		t.Error(diff)
	}
}

func TestCapacity(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sim.Config{Cloud: cloud}, object{"capacity": 2, "pool": "p"})
			w.mustCreate("a")
			w.mustCreate("b")
			_, err := w.create("c")
			wantCode(t, err, codes.ResourceExhausted)
			w.mustCreate("a")
			w.with(newClass(t, "elsewhere", object{"capacity": 2, "pool": "q"})).mustCreate("d")
			w.mustRemove("a", "")
			w.mustCreate("c")
		})
	}
}

func TestSeveralVMsOfOneMachine(t *testing.T) {
	w := newWorld(t, sim.Config{}, object{"pool": "p"})
	first := w.mustCreate("m").ProviderID
	second, err := w.Cloud().Add(sim.VM{Namespace: "ns", Machine: "m", Pool: "p"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.status("m", "")
	wantCode(t, err, codes.OutOfRange)
	_, err = w.status("m", first)
	wantCode(t, err, codes.OK)
	if diff := cmp.Diff(map[string]string{first: "m", second.ProviderID: "m"}, w.list()); diff != "" {
		t.Error(diff)
	}
	if got := w.histories()["ns/m"].MostAtOnce; got != 2 {
		t.Errorf("history says %d VMs at once, want 2", got)
	}
	w.mustRemove("m", second.ProviderID)
	if vms := w.vms(); len(vms) != 1 || vms[0].ProviderID != first {
		t.Errorf("VMs are %v, want only %s", vms, first)
	}
}

func TestInitialization(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sim.Config{Cloud: cloud, RequireInitialize: true}, nil)
			_, err := w.initialize("m")
			wantCode(t, err, codes.NotFound)
			id := w.mustCreate("m").ProviderID
			found, err := w.status("m", "")
			wantCode(t, err, codes.Uninitialized)
			if found == nil || found.ProviderID != id || found.NodeName != "m" {
				t.Fatalf("Uninitialized comes with %+v", found)
			}
			for range 2 {
				done, err := w.initialize("m")
				wantCode(t, err, codes.OK)
				if done == nil || done.ProviderID != id || done.NodeName != "m" {
					t.Errorf("initialize answers %+v", done)
				}
			}
			_, err = w.status("m", id)
			wantCode(t, err, codes.OK)
		})
	}
	_, err := newWorld(t, sim.Config{}, nil).initialize("m")
	wantCode(t, err, codes.Unimplemented)
}

func TestVolumeIDs(t *testing.T) {
	csi := func(handle string) *corev1.PersistentVolumeSpec {
		return &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "any", VolumeHandle: handle}}}
	}
	nfs := &corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		NFS: &corev1.NFSVolumeSource{Server: "s"}}}
	resp, err := sim.New(sim.Config{}).GetVolumeIDs(t.Context(), &driver.GetVolumeIDsRequest{
		PVSpecs: []*corev1.PersistentVolumeSpec{csi("a"), nfs, csi("b")}})
	wantCode(t, err, codes.OK)
	if diff := cmp.Diff([]string{"a", "b"}, resp.VolumeIDs); diff != "" {
		t.Error(diff)
	}
}

func TestInvalidRequestsNameTheField(t *testing.T) {
	tests := map[string]struct {
		spec  object
		field string
	}{
		"duration":          {object{"latency": "soon"}, "latency"},
		"negative duration": {object{"joinDelay": "-1s"}, "joinDelay"},
		"zero interval":     {object{"flapInterval": "0s"}, "flapInterval"},
		"join":              {object{"join": "maybe"}, "join"},
		"capacity":          {object{"capacity": -1}, "capacity"},
		"jitter":            {object{"jitter": 1.5}, "jitter"},
		"wrong type":        {object{"tags": object{"a": 1}}, "tags"},
		"unknown field":     {object{"latenzy": "1s"}, "latenzy"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sim.Config{}, tt.spec)
			_, createErr := w.create("m")
			_, statusErr := w.status("m", "")
			_, listErr := w.ListMachines(t.Context(), &driver.ListMachinesRequest{MachineClass: w.class})
			for _, err := range []error{createErr, statusErr, w.remove("m", ""), listErr} {
				wantCode(t, err, codes.InvalidArgument)
				if s, _ := status.FromError(err); !strings.Contains(s.Message(), tt.field) {
					t.Errorf("message %q does not name %s", s.Message(), tt.field)
				}
			}
		})
	}
	w := newWorld(t, sim.Config{}, nil)
	for _, name := range []string{"", "..", "a/b", "A"} {
		_, err := w.create(name)
		wantCode(t, err, codes.InvalidArgument)
	}
	if _, err := newWorld(t, sim.Config{}, object{"kind": "X", "apiVersion": "y/v1"}).create("m"); err != nil {
		t.Errorf("a specification with kind and apiVersion: %v", err)
	}
}

func TestManyCreatesAtOnceMakeOneVM(t *testing.T) {
	dir := t.TempDir()
	memory := sim.NewCloud(sim.CloudOptions{})
	tests := map[string][]*sim.Cloud{
		"memory":          {memory, memory},
		"one handle":      {openCloud(t, t.TempDir())},
		"handles of many": {openCloud(t, dir), openCloud(t, dir), openCloud(t, dir)},
	}
	for name, handles := range tests {
		t.Run(name, func(t *testing.T) {
			var worlds []world
			for _, cloud := range handles {
				worlds = append(worlds, newWorld(t, sim.Config{Cloud: cloud}, nil))
			}
			ids := make([]string, 50)
			var wg sync.WaitGroup
			for i := range ids {
				wg.Go(func() {
					resp, err := worlds[i%len(worlds)].create("m")
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
					t.Fatalf("two VMs: %s and %s", ids[0], id)
				}
			}
			for _, w := range worlds {
				if vms := w.vms(); len(vms) != 1 {
					t.Errorf("%d VMs exist, want 1", len(vms))
				}
				if h := w.histories()["ns/m"]; h.MostAtOnce != 1 || h.Calls[sim.CreateMachine] != 50 {
					t.Errorf("history is %+v", h)
				}
			}
		})
	}
}

func TestCloudInADirectorySurvives(t *testing.T) {
	dir := t.TempDir()
	first, err := sim.OpenCloud(dir, sim.CloudOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, sim.Config{Cloud: first}, object{"tags": object{"a": "b"}})
	w.mustCreate("gone")
	w.mustRemove("gone", "")
	id := w.mustCreate("stays").ProviderID
	before := w.vms()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	w = newWorld(t, sim.Config{Cloud: openCloud(t, dir)}, object{"tags": object{"a": "b"}})
	if diff := cmp.Diff(before, w.vms()); diff != "" {
		t.Errorf("VMs before and after (-before +after):\n%s", diff)
	}
	if got := w.mustCreate("stays").ProviderID; got != id {
		t.Errorf("the VM was not adopted: %s, want %s", got, id)
	}
	if got := w.mustCreate("gone").ProviderID; !strings.HasPrefix(got, "sim:///ns/gone/2-") {
		t.Errorf("the second VM of a name has ID %s", got)
	}
	if got := len(w.histories()["ns/gone"].ProviderIDs); got != 2 {
		t.Errorf("the journal tells of %d VMs, want 2", got)
	}
}

// TestJournalWhoseLastLineIsCutOff: its writer was killed, the rest counts.
func TestJournalWhoseLastLineIsCutOff(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, sim.Config{Cloud: openCloud(t, dir)}, nil)
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

func TestFaults(t *testing.T) {
	t.Run("codes in turn", func(t *testing.T) {
		w := newWorld(t, sim.Config{}, nil)
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
	t.Run("no effect before", func(t *testing.T) {
		w := newWorld(t, sim.Config{}, nil)
		w.Cloud().Fail(sim.Fault{Method: sim.CreateMachine})
		_, err := w.create("m")
		wantCode(t, err, codes.Unavailable)
		if len(w.vms()) != 0 {
			t.Error("a failed call made a VM")
		}
	})
	t.Run("lost answer", func(t *testing.T) {
		w := newWorld(t, sim.Config{}, nil)
		w.Cloud().LoseAnswers(sim.CreateMachine, "ns/m", 1)
		_, err := w.create("m")
		wantCode(t, err, codes.DeadlineExceeded)
		if vms := w.vms(); len(vms) != 1 || vms[0].ProviderID != w.mustCreate("m").ProviderID {
			t.Errorf("VMs after a lost answer: %v", vms)
		}
	})
	t.Run("per machine, for ever, cleared", func(t *testing.T) {
		w := newWorld(t, sim.Config{}, nil)
		w.Cloud().Fail(sim.Fault{Method: sim.GetMachineStatus, Codes: []codes.Code{codes.Internal}, PerMachine: true})
		w.Cloud().Fail(sim.Fault{Codes: []codes.Code{codes.Aborted}, Times: -1})
		for _, name := range []string{"a", "b"} {
			_, err := w.status(name, "")
			wantCode(t, err, codes.Internal)
			for range 3 {
				_, err = w.status(name, "")
				wantCode(t, err, codes.Aborted)
			}
		}
		w.Cloud().ClearFaults()
		_, err := w.status("a", "")
		wantCode(t, err, codes.NotFound)
	})
	t.Run("hang", func(t *testing.T) {
		w := newWorld(t, sim.Config{}, nil)
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

// TestChanceDependsOnTheSeedOnly: the same seed fails the same calls, in whichever
// order they come; another seed fails others.
func TestChanceDependsOnTheSeedOnly(t *testing.T) {
	const machines = 200
	run := func(seed uint64, backwards bool) []bool {
		w := newWorld(t, sim.Config{Seed: seed}, nil)
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
		t.Errorf("order of calls changes chance:\n%s", diff)
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
		t.Errorf("%d of %d calls failed, want about 30 %%", count, machines)
	}
}

// TestNeverTwoVMs: whatever fails and whatever answer is lost, a caller that repeats
// itself ends with the one VM it asked for, or with none.
func TestNeverTwoVMs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, sim.Config{Seed: rapid.Uint64().Draw(rt, "seed")}, nil)
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		method := rapid.SampledFrom([]sim.Method{sim.CreateMachine, sim.DeleteMachine, sim.GetMachineStatus, ""})
		wanted := map[string]bool{}
		rt.Repeat(map[string]func(*rapid.T){
			"fault": func(rt *rapid.T) {
				w.Cloud().Fail(sim.Fault{
					Method: method.Draw(rt, "method"), Machine: name.Draw(rt, "machine"),
					Times: rapid.IntRange(1, 3).Draw(rt, "times"), LostAnswer: rapid.Bool().Draw(rt, "lost"),
				})
			},
			"create": func(rt *rapid.T) {
				m := name.Draw(rt, "machine")
				wanted[m] = true
				untilOK(rt, func() error { _, err := w.create(m); return err })
			},
			"delete": func(rt *rapid.T) {
				m := name.Draw(rt, "machine")
				delete(wanted, m)
				untilOK(rt, func() error { return w.remove(m, "") })
			},
			"": func(rt *rapid.T) {
				got := map[string]bool{}
				for _, v := range w.vms() {
					if got[v.Machine] {
						rt.Fatalf("two VMs for %s", v.Machine)
					}
					got[v.Machine] = true
				}
				if diff := cmp.Diff(wanted, got); diff != "" {
					rt.Fatalf("VMs (-want +got):\n%s", diff)
				}
				for m, h := range w.histories() {
					if h.MostAtOnce > 1 {
						rt.Fatalf("%s had %d VMs at once", m, h.MostAtOnce)
					}
				}
			},
		})
	})
}

// untilOK repeats f, which the script fails a bounded number of times.
func untilOK(rt *rapid.T, f func() error) {
	for range 1000 {
		if f() == nil {
			return
		}
	}
	rt.Fatal("the call never succeeded")
}

func TestFiveThousandVMs(t *testing.T) {
	const count = 5000
	w := newWorld(t, sim.Config{}, object{"capacity": count})
	each := func(f func(name string) error) {
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
	each(func(name string) error { _, err := w.create(name); return err })
	if list := w.list(); len(list) != count {
		t.Errorf("%d VMs in the list, want %d", len(list), count)
	}
	_, err := w.create("one-more")
	wantCode(t, err, codes.ResourceExhausted)
	each(func(name string) error { _, err := w.status(name, ""); return err })
	each(func(name string) error { return w.remove(name, "") })
	if vms := w.vms(); len(vms) != 0 {
		t.Errorf("%d VMs are left", len(vms))
	}
	histories := w.histories()
	if len(histories) != count+1 {
		t.Errorf("%d machines in the journal, want %d", len(histories), count+1)
	}
	for m, h := range histories {
		if m != "ns/one-more" && (h.MostAtOnce != 1 || len(h.ProviderIDs) != 1 || h.Left != 0) {
			t.Errorf("history of %s: %+v", m, h)
		}
	}
}
