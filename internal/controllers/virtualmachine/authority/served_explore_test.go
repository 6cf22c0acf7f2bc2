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

// tokens is how many there are. Each Pod has the number of the token with which it begins.
const tokens = 4

// stored is what the status has.
type stored struct {
	holder, token, revoked      int64 // 0: none
	barred                      bool  // the lease
	source, target, targetToken int64
	underWay                    bool
}

// served is all that counts: the status, the server, and what was decided. A call that was decided can arrive at any time,
// again and again, as those of a leader that is none any more.
type served struct {
	stored
	done, opened int64         // up to which token the server has revoked, and the highest that it has opened
	open         [tokens]int64 // by token: the Pod that can change the disks
	revokes      [tokens]bool  // decided
	opens        [tokens]int64 // decided
	confirmed    int64         // by answers that the leader has got
	runs         [tokens]int64 // by token: the Pod that has got the lease
}

// real returns the VM as the rules see it.
func (s stored) real() *v1alpha1.VirtualMachine {
	vm := &v1alpha1.VirtualMachine{Spec: v1alpha1.VirtualMachineSpec{DiskAccess: v1alpha1.DiskAccessServed, LeaseMode: v1alpha1.LeaseFullLeases}}
	vm.Status.DiskServer = &v1alpha1.DiskServerStatus{PodName: "server", RevokedToken: s.revoked}
	if s.holder > 0 {
		vm.Status.ActivePodName = fmt.Sprint(s.holder)
		vm.Status.Lease = &v1alpha1.VirtualMachineLease{State: v1alpha1.LeaseOpen, FencingToken: s.token}
		if s.barred {
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

// rulesOff switches rules off.
type rulesOff struct {
	grantEarly bool // a lease is granted whatever is revoked
	sameToken  bool // who takes the VM back gets the token of the target
}

// edges returns what can happen.
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
	add("decide", func(to *served) { // it decides what the server is to do
		want := disks.Wanted(vm)
		if want.Revoke > 0 {
			to.revokes[want.Revoke] = true
		}
		for _, holder := range want.Open {
			_, _ = fmt.Sscan(holder.Pod, &to.opens[holder.Token])
		}
	})
	add("record the revocation", func(to *served) { to.revoked = max(to.revoked, w.confirmed) })
	add("bar the lease", func(to *served) { to.barred = w.holder > 0 })
	highest := authority.HighestToken(&vm.Status)
	if w.barred || w.holder == 0 {
		add("decide to revoke", func(to *served) { to.revokes[highest] = highest > 0 })
	}
	lease := authority.LeaseAfter(&vm.Status, time.Minute, begin)
	if (w.barred || w.holder == 0) && w.revoked >= highest && lease.FencingToken < tokens {
		add("hand the lease on", func(to *served) {
			to.holder, to.token, to.barred, to.underWay = lease.FencingToken, lease.FencingToken, false, false
		})
	}
	add("end the migration", func(to *served) { to.underWay = false })
}

func (off rulesOff) hypervisors(w served, add func(string, func(*served))) {
	vm := w.real()
	access := authority.AccessOf(vm)
	if w.holder > 0 && !w.barred && (access == authority.AccessOpen || off.grantEarly) {
		add("grant", func(to *served) { to.runs[w.token] = w.holder })
	}
	token := authority.NextToken(&vm.Status, begin)
	if w.holder > 0 && w.runs[w.token] == w.holder && !w.underWay && token < tokens {
		add("migrate", func(to *served) { to.source, to.target, to.targetToken, to.underWay = w.holder, token, token, true })
	}
	if !w.underWay {
		return
	}
	for _, pod := range []int64{w.target, w.source} { // the switchover, or the source takes the VM back
		moved := w.real()
		moved.Status.ActivePodName = fmt.Sprint(pod)
		authority.PassLease(&moved.Status, begin)
		got := moved.Status.Lease.FencingToken
		if off.sameToken {
			got = w.targetToken
		}
		if got < tokens {
			add("pass the lease", func(to *served) { to.holder, to.token, to.barred, to.underWay = pod, got, false, false })
		}
	}
}

// server does what was decided, and ends.
func server(w served, add func(string, func(*served))) {
	for upTo := range int64(tokens) {
		if !w.revokes[upTo] {
			continue
		}
		for _, answered := range []bool{false, true} {
			add("revoke", func(to *served) {
				to.revoke(upTo)
				if answered {
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
	add("the server ends", func(to *served) { to.open, to.confirmed = [tokens]int64{}, 0 }) // its process ends
	add("the server's host crashes", func(to *served) {                                     // its host crashes
		to.revoke(w.opened)
		to.open, to.confirmed = [tokens]int64{}, 0
	})
	if w.holder > 0 && w.token <= w.done && w.opens[w.token] > 0 { // it refuses the holder
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

// errShared means that somebody else can change the disks of who has got a lease, or will.
var errShared = errors.New("somebody else can change the disks")

func (w *served) check() error {
	for token, pod := range w.runs {
		if pod == 0 {
			continue
		}
		if w.done < int64(token)-1 {
			return fmt.Errorf("%w: pod %d runs with token %d, and only %d is revoked", errShared, pod, token, w.done)
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

// recovered reports whether the holder has its lease and its disks. Of worlds near the last token this cannot be said.
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

// TestServedExploration: whatever is lost, late or repeated, whoever crashes when, nobody has a lease while somebody with
// another token can change the disks, or will. And somebody gets the VM again.
func TestServedExploration(t *testing.T) {
	states, err := rulesOff{}.explore()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d states", states)
}

// TestServedRules: without each rule the exploration finds what must not be.
func TestServedRules(t *testing.T) {
	for name, off := range map[string]rulesOff{"grant early": {grantEarly: true}, "the same token": {sameToken: true}} {
		if _, err := off.explore(); !errors.Is(err, errShared) {
			t.Errorf("%s: error = %v, want %v", name, err, errShared)
		}
	}
}
