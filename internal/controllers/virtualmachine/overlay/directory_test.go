package overlay

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	overlaypb "github.com/millwright-dev/millwright/proto/overlay"
)

func vm(name string) types.NamespacedName { return types.NamespacedName{Namespace: "a", Name: name} }

func at(endpoint string) *overlaypb.Peer {
	return &overlaypb.Peer{State: overlaypb.Peer_STATE_PRESENT, Endpoint: endpoint}
}

// states returns a text with the peers of the next update.
func states(f *Follower) string {
	update, _ := f.Next()
	if update == nil {
		return "nothing"
	}
	text := ""
	if update.GetSnapshot() {
		text = "snapshot"
	}
	for _, peer := range update.GetPeers() {
		text += fmt.Sprintf(" %s:%d%s", peer.GetVm(), peer.GetState(), peer.GetEndpoint())
	}
	return text
}

func own(namespace string) string { return namespace }

func TestDirectory_ReportsChanges(t *testing.T) {
	d := New(own)
	d.Set(vm("x"), at("@1"))
	d.Set(vm("restarted"), &overlaypb.Peer{State: overlaypb.Peer_STATE_UNCHANGED})
	f := d.Follow(vm("self"))
	for _, step := range []struct {
		what, want string
		do         func()
	}{
		{"a snapshot", "snapshot a/restarted:3 a/x:1@1", func() {}},
		{"no change", "nothing", func() { d.Set(vm("x"), at("@1")) }},
		{"a new VM", " a/y:1@2", func() { d.Set(vm("y"), at("@2")) }},
		{"the VM of the follower", "nothing", func() { d.Set(vm("self"), at("@3")) }},
		{"a VM in another network", "nothing", func() { d.Set(types.NamespacedName{Namespace: "b", Name: "x"}, at("@4")) }},
		{"a move", " a/x:1@5", func() { d.Set(vm("x"), at("@5")) }},
		{"several moves", " a/x:1@7", func() { d.Set(vm("x"), at("@6")); d.Set(vm("x"), at("@7")) }},
		{"a VM that is gone", " a/x:2", func() { d.Set(vm("x"), nil) }},
		{"a VM that never was", "nothing", func() { d.Set(vm("z"), nil) }},
		{"a VM that may be somewhere", "nothing", func() { d.Set(vm("z"), &overlaypb.Peer{State: overlaypb.Peer_STATE_UNCHANGED}) }},
	} {
		step.do()
		if got := states(f); got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}

func TestDirectory_OneNetwork(t *testing.T) {
	d := New(func(string) string { return "" })
	d.Set(types.NamespacedName{Namespace: "b", Name: "x"}, at("@1"))
	if got := states(d.Follow(vm("self"))); got != "snapshot b/x:1@1" {
		t.Error(got)
	}
}

func TestDirectory_Announces(t *testing.T) {
	d := New(own)
	f := d.Follow(vm("self"))
	_, changed := f.Next()
	select {
	case <-changed:
		t.Error("changed before a change")
	default:
	}
	d.Set(vm("x"), at("@1"))
	select {
	case <-changed:
	default:
		t.Error("not changed")
	}
}

// TestDirectory_SlowFollower checks that a follower that missed many changes gets a snapshot, and that the directory
// does not grow with the number of changes.
func TestDirectory_SlowFollower(t *testing.T) {
	d := New(own)
	slow, current := d.Follow(vm("slow")), d.Follow(vm("current"))
	slow.Next()
	current.Next()
	for i := range 3 * maxLog {
		d.Set(vm("x"), at(fmt.Sprintf("@%d", i)))
		update, _ := current.Next()
		if update.GetSnapshot() || len(update.GetPeers()) != 1 {
			t.Fatalf("change %d: %v", i, update)
		}
	}
	if got, want := states(slow), fmt.Sprintf("snapshot a/x:1@%d", 3*maxLog-1); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := len(d.networks["a"].log); got > maxLog {
		t.Errorf("%d changes are stored", got)
	}
	d.Set(vm("x"), nil)
	if len(d.networks["a"].peers) > 0 {
		t.Error("a VM that is gone is stored")
	}
}

func TestDirectory_Peer(t *testing.T) {
	d := New(own)
	d.Set(vm("x"), at("@1"))
	if got := d.Peer(vm("self"), "a/x").GetEndpoint(); got != "@1" {
		t.Error(got)
	}
	if got := d.Peer(types.NamespacedName{Namespace: "b", Name: "self"}, "a/x"); got != nil {
		t.Errorf("another network has %v", got)
	}
}

// TestDirectory_SharesMessages checks that followers do not change the stored locations.
func TestDirectory_SharesMessages(t *testing.T) {
	d := New(own)
	d.Set(vm("x"), at("@1"))
	first, _ := d.Follow(vm("a")).Next()
	second, _ := d.Follow(vm("b")).Next()
	if !proto.Equal(first, second) {
		t.Errorf("%v and %v", first, second)
	}
}
