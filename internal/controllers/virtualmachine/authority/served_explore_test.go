package authority_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/test/support/explore"
)

// tokens is the number of tokens. Each Pod has the number of the token with which it starts.
const tokens = 4

// stored is the modeled part of the VM's status.
type stored struct {
	holder, token, revoked      int64 // 0 means none
	leaseRevoked                bool  // the lease is revoked
	source, target, targetToken int64
	underWay                    bool
}

// served is the state of the model: the status, the server, and the calls that were decided. A decided call can
// arrive at any time and more than once, like the calls of a process that is no longer the leader.
type served struct {
	stored
	done, opened int64         // the token up to which the server has revoked, and the highest one that it has opened
	open         [tokens]int64 // the Pod that can change the disks, by token
	revokes      [tokens]bool  // decided revocations
	opens        [tokens]int64 // decided openings
	confirmed    int64         // the token up to which the leader knows tokens to be revoked
	runs         [tokens]int64 // the Pod that got the lease, by token
}

// real returns the VM in the form that the tested functions take.
func (s stored) real() *v1alpha1.VirtualMachine {
	vm := &v1alpha1.VirtualMachine{Spec: v1alpha1.VirtualMachineSpec{DiskAccess: v1alpha1.DiskAccessServed, LeaseMode: v1alpha1.LeaseFullLeases}}
	vm.Status.DiskServer = &v1alpha1.DiskServerStatus{PodName: "server", RevokedToken: s.revoked}
	if s.holder > 0 {
		vm.Status.ActivePodName = fmt.Sprint(s.holder)
		vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, FencingToken: s.token}
		if s.leaseRevoked {
			vm.Status.Lease.State = v1alpha1.LeaseRevoked
		}
	}
	if s.target > 0 {
		phase := v1alpha1.MigrationFailed
		if s.underWay {
			phase = v1alpha1.MigrationCopying
		}
		vm.Status.Migration = &v1alpha1.VirtualMachineMigration{
			Phase: phase, SourcePodName: fmt.Sprint(s.source), TargetPodName: fmt.Sprint(s.target), TargetFencingToken: s.targetToken,
		}
	}
	return vm
}

var begin = time.UnixMilli(1)

// rulesOff disables rules.
type rulesOff struct {
	grantEarly bool // a lease is granted before earlier tokens are revoked
	sameToken  bool // a source that takes the VM back gets the token of the target
}

// edges returns all possible next states.
func (off rulesOff) edges(w served) []explore.Edge[served] {
	var next []explore.Edge[served]
	add := func(what string, change func(*served)) {
		to := w
		if change(&to); to != w {
			next = append(next, explore.Edge[served]{To: to, Name: what})
		}
	}
	off.controller(w, add)
	off.hypervisors(w, add)
	server(w, add)
	return next
}

func (off rulesOff) controller(w served, add func(string, func(*served))) {
	vm := w.real()
	add("decide", func(to *served) { // what the server should do
		desired := disks.DesiredFor(vm)
		if desired.Revoke > 0 {
			to.revokes[desired.Revoke] = true
		}
		for _, holder := range desired.Open {
			_, _ = fmt.Sscan(holder.Pod, &to.opens[holder.Token])
		}
	})
	add("record the revocation", func(to *served) { to.revoked = max(to.revoked, w.confirmed) })
	add("revoke the lease", func(to *served) { to.leaseRevoked = w.holder > 0 })
	highest := authority.HighestToken(&vm.Status)
	if w.leaseRevoked || w.holder == 0 {
		add("decide to revoke", func(to *served) { to.revokes[highest] = highest > 0 })
	}
	lease := authority.LeaseAfter(&vm.Status, time.Minute, begin)
	if (w.leaseRevoked || w.holder == 0) && w.revoked >= highest && lease.FencingToken < tokens {
		add("move the lease", func(to *served) {
			to.holder, to.token, to.leaseRevoked, to.underWay = lease.FencingToken, lease.FencingToken, false, false
		})
	}
	add("end the migration", func(to *served) { to.underWay = false })
}

func (off rulesOff) hypervisors(w served, add func(string, func(*served))) {
	vm := w.real()
	access := authority.AccessOf(vm)
	if w.holder > 0 && !w.leaseRevoked && (access == authority.AccessOpen || off.grantEarly) {
		add("grant", func(to *served) { to.runs[w.token] = w.holder })
	}
	token := authority.NextToken(&vm.Status, begin)
	if w.holder > 0 && w.runs[w.token] == w.holder && !w.underWay && token < tokens {
		add("migrate", func(to *served) { to.source, to.target, to.targetToken, to.underWay = w.holder, token, token, true })
	}
	if !w.underWay {
		return
	}
	for _, pod := range []int64{w.target, w.source} { // the switchover, or the source taking the VM back
		moved := w.real()
		moved.Status.ActivePodName = fmt.Sprint(pod)
		authority.PassLease(&moved.Status, begin)
		got := moved.Status.Lease.FencingToken
		if off.sameToken {
			got = w.targetToken
		}
		if got < tokens {
			add("pass the lease", func(to *served) { to.holder, to.token, to.leaseRevoked, to.underWay = pod, got, false, false })
		}
	}
}

// server executes decided calls, and crashes.
func server(w served, add func(string, func(*served))) {
	for upTo := range int64(tokens) {
		if !w.revokes[upTo] {
			continue
		}
		for _, confirmed := range []bool{false, true} {
			add("revoke", func(to *served) {
				to.revoke(upTo)
				if confirmed {
					to.confirmed = max(to.confirmed, upTo)
				}
			})
		}
	}
	for token, pod := range w.opens {
		if pod > 0 && int64(token) > w.done && w.open[token] == 0 {
			add("open", func(to *served) { to.open[token], to.opened = pod, max(to.opened, int64(token)) })
		}
	}
	add("the server exits", func(to *served) { to.open, to.confirmed = [tokens]int64{}, 0 })
	add("the server's host crashes", func(to *served) {
		to.revoke(w.opened)
		to.open, to.confirmed = [tokens]int64{}, 0
	})
	if w.holder > 0 && w.token <= w.done && w.opens[w.token] > 0 {
		add("refuse the holder", func(to *served) { to.confirmed = max(to.confirmed, w.token) })
	}
}

func (w *served) revoke(upTo int64) {
	w.done = max(w.done, upTo)
	for token := range w.open {
		if int64(token) <= upTo {
			w.open[token] = 0
		}
	}
}

// errShared means that another process can change the disks of a holder of a lease, or will be able to.
var errShared = errors.New("another process can change the disks")

func (w *served) check() error {
	for token, pod := range w.runs {
		if pod == 0 {
			continue
		}
		if w.done < int64(token)-1 {
			return fmt.Errorf("%w: pod %d runs with token %d, but tokens are revoked only up to %d", errShared, pod, token, w.done)
		}
		if has := w.open[token]; has != 0 && has != pod {
			return fmt.Errorf("%w: pod %d runs with the token %d of pod %d", errShared, pod, token, has)
		}
		for other, has := range w.open {
			before := w.underWay && int64(other) == w.targetToken || w.runs[other] == 0
			if has != 0 && other != token && !before && other < token {
				return fmt.Errorf("%w: pods %d and %d", errShared, pod, has)
			}
		}
	}
	return nil
}

// recovered reports whether the holder has its lease and its disks. It also returns true for states near the last
// token, which have no tokens left to recover.
func (w *served) recovered() bool {
	last := max(w.token, w.targetToken, w.done) >= tokens-2
	return last || w.token > 0 && w.runs[w.token] == w.holder && w.open[w.token] == w.holder
}

func (off rulesOff) explore() (int, error) {
	return explore.Model[served]{
		Edges: off.edges,
		Check: func(w served) error { return w.check() },
		Good:  func(w served) bool { return w.recovered() },
	}.Explore()
}

// TestServedDisks_ExploreStates checks that no process gets a lease while another process with another token can change the
// disks, whichever calls are lost, late or repeated and whichever processes crash. It also checks that the VM always
// recovers.
func TestServedDisks_ExploreStates(t *testing.T) {
	states, err := rulesOff{}.explore()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d states", states)
}

// TestServedDisks_Rules checks that the exploration finds an error if a rule is disabled.
func TestServedDisks_Rules(t *testing.T) {
	for name, off := range map[string]rulesOff{"grant early": {grantEarly: true}, "the same token": {sameToken: true}} {
		if _, err := off.explore(); !errors.Is(err, errShared) {
			t.Errorf("%s: error = %v, want %v", name, err, errShared)
		}
	}
}
