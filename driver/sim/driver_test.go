package sim_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got code %v, want %v (%v)", got, want, err)
	}
}

// TestVM_Lifecycle and the test that follows it run on a cloud in memory and on one in a directory.
func TestVM_Lifecycle(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, sim.Config{Cloud: cloud}, nil)
			_, err := w.status("m", "")
			wantCode(t, err, codes.NotFound)

			made := w.mustCreate("m")
			if made.NodeName != "m" || !strings.HasPrefix(made.ProviderID, "sim:///ns/m/1-") || len(made.Addresses) == 0 {
				t.Errorf("CreateMachine returned %+v", made)
			}
			if again := w.mustCreate("m"); !cmp.Equal(made, again) {
				t.Errorf("create is not idempotent: %s", cmp.Diff(made, again))
			}
			want := &driver.GetMachineStatusResponse{ProviderID: made.ProviderID, NodeName: "m", Addresses: made.Addresses}
			for _, id := range []string{"", made.ProviderID} {
				found, err := w.status("m", id)
				wantCode(t, err, codes.OK)
				if diff := cmp.Diff(want, found); diff != "" {
					t.Errorf("status with ID %q (-want +got):\n%s", id, diff)
				}
			}
			if diff := cmp.Diff(map[string]string{made.ProviderID: "m"}, w.list()); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}

			for _, id := range []string{made.ProviderID, made.ProviderID, ""} {
				w.mustRemove("m", id)
			}
			_, err = w.status("m", made.ProviderID)
			wantCode(t, err, codes.NotFound)
			if list := w.list(); len(list) != 0 {
				t.Errorf("list after deletion: %v", list)
			}
		})
	}
}

func TestVM_SecondWithSameName(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, sim.Config{Cloud: cloud}, nil)
			first := w.mustCreate("m").ProviderID
			w.mustRemove("m", "")
			second := w.mustCreate("m").ProviderID
			if second == first {
				t.Error("a second VM of the same name has the same provider ID")
			}
			_, err := w.status("m", first)
			wantCode(t, err, codes.NotFound)
			w.mustRemove("m", first)
			if len(w.vms()) != 1 {
				t.Error("deleting by the first VM's ID removed the second VM")
			}
			w.mustRemove("m", "")
			want := sim.History{
				ProviderIDs: []string{first, second}, MostAtOnce: 1, Left: 0,
				Calls: map[sim.Method]int{sim.CreateMachine: 2, sim.DeleteMachine: 3, sim.GetMachineStatus: 1},
			}
			if diff := cmp.Diff(want, w.histories()["ns/m"]); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDriver_IgnoresForeignVMs(t *testing.T) {
	tests := map[string]struct{ mine, other object }{
		"other pool":  {object{"pool": "a"}, object{"pool": "b"}},
		"other tag":   {object{"pool": "a", "tags": object{"cluster": "x"}}, object{"pool": "a", "tags": object{"cluster": "y"}}},
		"missing tag": {object{"pool": "a"}, object{"pool": "a", "tags": object{"cluster": "y"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			mine := newTestDriver(t, sim.Config{}, tt.mine)
			other := mine.with(newClass(t, "other", tt.other))
			id := mine.mustCreate("m").ProviderID

			_, err := other.create("m")
			wantCode(t, err, codes.AlreadyExists)
			_, err = other.status("m", "")
			wantCode(t, err, codes.NotFound)
			other.mustRemove("m", "")
			if list := other.list(); len(list) != 0 {
				t.Errorf("the other class listed %v", list)
			}
			if vms := mine.vms(); len(vms) != 1 || vms[0].ProviderID != id {
				t.Errorf("got VMs %v, want only %s", vms, id)
			}
		})
	}
}

// TestVM_IsFoundAfterClassIsEdited: a VM whose ID is stored is found and deleted after the class was edited. A VM without a stored
// ID is looked for where its creation started.
func TestVM_IsFoundAfterClassIsEdited(t *testing.T) {
	for name, edit := range map[string]object{
		"pool":    {"pool": "b", "tags": object{"cluster": "x"}},
		"tags":    {"pool": "a", "tags": object{"cluster": "y"}},
		"nothing": {"pool": "a", "tags": object{"cluster": "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := newTestDriver(t, sim.Config{}, object{"pool": "a", "tags": object{"cluster": "x"}})
			after := before.with(newClass(t, "pool", edit))
			id := before.mustCreate("m").ProviderID
			if got, err := after.status("m", id); err != nil || got.ProviderID != id {
				t.Errorf("got status %v, %v", got, err)
			}
			begun := after.machine("m", "")
			at := before.locate(begun)
			begun.Annotations = map[string]string{driver.AnnotationLocation: at}
			if got := after.locate(begun); got != at {
				t.Errorf("got location %q, want %q", got, at)
			}
			got, err := after.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: begun, MachineClass: after.class, Secret: &corev1.Secret{}})
			if err != nil || got.ProviderID != id {
				t.Errorf("without the ID, got status %v, %v", got, err)
			}
			after.mustRemove("m", id)
			if vms := before.vms(); len(vms) != 0 {
				t.Errorf("VMs still exist: %v", vms)
			}
		})
	}
}

// TestDriver_SeparatesAccounts: no call looks beyond the account in the Secret, and the location contains the account.
func TestDriver_SeparatesAccounts(t *testing.T) {
	w := newTestDriver(t, sim.Config{}, nil)
	id := w.mustCreate("m").ProviderID
	other := &corev1.Secret{Data: map[string][]byte{"account": []byte("other")}}
	m := w.machine("m", id)
	m.Annotations = map[string]string{driver.AnnotationLocation: w.locate(m)}
	at, err := w.LocateMachine(t.Context(), &driver.LocateMachineRequest{Machine: m, MachineClass: w.class, Secret: other})
	if err != nil || at.Location == w.locate(m) {
		t.Errorf("with another account, got location %v, %v", at, err)
	}
	_, err = w.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: m, MachineClass: w.class, Secret: other})
	wantCode(t, err, codes.NotFound)
	if err := w.Cloud().Move("default", "other"); err != nil {
		t.Fatal(err)
	}
	got, err := w.GetMachineStatus(t.Context(), &driver.GetMachineStatusRequest{Machine: m, MachineClass: w.class, Secret: other})
	if err != nil || got.ProviderID != id {
		t.Errorf("after the move, got status %v, %v", got, err)
	}
}

func TestDriver_SeparatesClassesWithoutPool(t *testing.T) {
	a := newTestDriver(t, sim.Config{}, nil)
	b := a.with(newClass(t, "large", nil))
	idA, idB := a.mustCreate("a").ProviderID, b.mustCreate("b").ProviderID
	if diff := cmp.Diff(map[string]string{idA: "a"}, a.list()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{idB: "b"}, b.list()); diff != "" {
		t.Error(diff)
	}
}

func TestPool_CapacityIsLimited(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, sim.Config{Cloud: cloud}, object{"capacity": 2, "pool": "p"})
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

func TestMachine_WithSeveralVMs(t *testing.T) {
	w := newTestDriver(t, sim.Config{}, object{"pool": "p"})
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
		t.Errorf("got %d concurrent VMs in the history, want 2", got)
	}
	w.mustRemove("m", second.ProviderID)
	if vms := w.vms(); len(vms) != 1 || vms[0].ProviderID != first {
		t.Errorf("got VMs %v, want only %s", vms, first)
	}
}

func TestDriver_InitializesVMs(t *testing.T) {
	for name, cloud := range clouds(t) {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, sim.Config{Cloud: cloud, RequireInitialize: true}, nil)
			_, err := w.initialize("m")
			wantCode(t, err, codes.NotFound)
			id := w.mustCreate("m").ProviderID
			found, err := w.status("m", "")
			wantCode(t, err, codes.Uninitialized)
			if found == nil || found.ProviderID != id || found.NodeName != "m" {
				t.Fatalf("got response %+v with Uninitialized", found)
			}
			for range 2 {
				done, err := w.initialize("m")
				wantCode(t, err, codes.OK)
				if done == nil || done.ProviderID != id || done.NodeName != "m" {
					t.Errorf("InitializeMachine returned %+v", done)
				}
			}
			_, err = w.status("m", id)
			wantCode(t, err, codes.OK)
		})
	}
	_, err := newTestDriver(t, sim.Config{}, nil).initialize("m")
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

func TestDriver_InvalidRequestsNameField(t *testing.T) {
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
		"wrong type":        {object{"capacity": "1"}, "capacity"},
		"unknown field":     {object{"latenzy": "1s"}, "unknown field providerSpec.latenzy (known fields: agent, capacity, deleteDelay, "},
		"unknown below":     {object{"nodeTaints": []object{{"efect": "NoSchedule"}}}, `providerSpec: json: unknown field "efect"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newTestDriver(t, sim.Config{}, tt.spec)
			_, err := w.create("m")
			wantRejected(t, err, tt.field)
			_, err = w.update("m")
			wantRejected(t, err, tt.field)
		})
	}
	w := newTestDriver(t, sim.Config{}, nil)
	for _, name := range []string{"", "..", "a/b", "A"} {
		_, err := w.create(name)
		wantCode(t, err, codes.InvalidArgument)
	}
	if _, err := newTestDriver(t, sim.Config{}, object{"kind": "X", "apiVersion": "y/v1"}).create("m"); err != nil {
		t.Errorf("a specification with kind and apiVersion: %v", err)
	}
}

// TestMachine_NameTooLongForNode checks that no VM is created if its node could not have the name of the machine. Other
// calls accept the name.
func TestMachine_NameTooLongForNode(t *testing.T) {
	w := newTestDriver(t, sim.Config{}, nil)
	w.mustCreate(strings.Repeat("m", 63))
	name := strings.Repeat("m", 64)
	_, err := w.create(name)
	wantCode(t, err, codes.InvalidArgument)
	_, err = w.status(name, "")
	wantCode(t, err, codes.NotFound)
	w.mustRemove(name, "")
}

func wantRejected(t *testing.T, err error, field string) {
	t.Helper()
	wantCode(t, err, codes.InvalidArgument)
	if s, _ := status.FromError(err); !strings.Contains(s.Message(), field) {
		t.Errorf("message %q does not name %s", s.Message(), field)
	}
}

// TestMachine_IsDeletedWithInvalidClass checks that an invalid class, for example one with a field of a later version, prevents
// the creation of VMs but not their deletion. Otherwise, each failed Machine would stay Terminating, while its MachineSet
// creates the next one.
func TestMachine_IsDeletedWithInvalidClass(t *testing.T) {
	for name, change := range map[string]object{
		"unknown field":       {"latenzy": "1s"},
		"unknown field below": {"nodeTaints": []object{{"efect": "NoSchedule"}}},
		"invalid value":       {"jitter": 7},
		"wrong type":          {"join": 1},
		"invalid zone":        {"zone": "a/b"},
		"zone of other type":  {"zone": []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			valid := object{"pool": "p", "tags": object{"cluster": "x"}}
			w := newTestDriver(t, sim.Config{}, valid)
			w.with(newClass(t, "other", object{"pool": "p", "tags": object{"cluster": "y"}})).mustCreate("foreign")
			w.with(newClass(t, "other", object{"pool": "q", "tags": object{"cluster": "x"}})).mustCreate("elsewhere")
			first, second := w.mustCreate("m").ProviderID, w.mustCreate("n").ProviderID
			maps.Copy(valid, change)
			edited := w.with(newClass(t, "small", valid))
			if got, want := edited.locate(machine("m", "")), w.locate(machine("m", "")); got != want {
				t.Errorf("got location %q, want %q", got, want)
			}

			_, err := edited.create("o")
			wantCode(t, err, codes.InvalidArgument)
			for _, machine := range []string{"o", "foreign", "elsewhere"} {
				_, err = edited.status(machine, "")
				wantCode(t, err, codes.NotFound)
				edited.mustRemove(machine, "")
			}
			if got, err := edited.status("m", ""); err != nil || got.ProviderID != first {
				t.Errorf("got status %v, %v, want %s", got, err, first)
			}
			if diff := cmp.Diff(map[string]string{first: "m", second: "n"}, edited.list()); diff != "" {
				t.Errorf("list (-want +got):\n%s", diff)
			}
			edited.mustRemove("m", "")
			edited.mustRemove("n", second)
			if vms := w.vms(); len(vms) != 2 {
				t.Errorf("got VMs %v, want those of the other classes", vms)
			}
		})
	}
}

// TestDriver_RejectsInvalidOwner checks that no call looks for VMs if the class does not identify them.
func TestDriver_RejectsInvalidOwner(t *testing.T) {
	for field, spec := range map[string]object{"pool": {"pool": 1}, "tags": {"tags": object{"a": 1}}} {
		t.Run(field, func(t *testing.T) {
			w := newTestDriver(t, sim.Config{}, spec)
			_, created := w.create("m")
			_, found := w.status("m", "")
			_, listed := w.ListMachines(t.Context(), &driver.ListMachinesRequest{MachineClass: w.class})
			_, located := w.LocateMachine(t.Context(), &driver.LocateMachineRequest{Machine: machine("m", ""), MachineClass: w.class})
			for _, err := range []error{created, found, w.remove("m", ""), listed, located} {
				wantRejected(t, err, field)
			}
		})
	}
}

// TestDriver_ListWithoutTagsRejectsUnknownField checks that VMs are not listed if the class has an unknown field and no tags.
// The unknown field may be a misspelling of tags, and the list would then contain the VMs of other clusters.
func TestDriver_ListWithoutTagsRejectsUnknownField(t *testing.T) {
	w := newTestDriver(t, sim.Config{}, object{"pool": "p", "tgas": object{"cluster": "x"}})
	w.with(newClass(t, "other", object{"pool": "p", "tags": object{"cluster": "y"}})).mustCreate("foreign")
	_, err := w.ListMachines(t.Context(), &driver.ListMachinesRequest{MachineClass: w.class})
	wantRejected(t, err, "tgas")
}
