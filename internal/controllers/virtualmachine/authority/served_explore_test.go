package authority_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
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

// edges returns the worlds after each thing that can happen.
func (off rulesOff) edges(w served) []served {
	var next []served
	add := func(change func(*served)) {
		to := w
		if change(&to); to != w {
			next = append(next, to)
		}
	}
	off.controller(w, add)
	off.hypervisors(w, add)
	server(w, add)
	return next
}

func (off rulesOff) controller(w served, add func(func(*served))) {
	vm := w.real()
	add(func(to *served) { // it decides what the server is to do
		want := disks.Wanted(vm)
		if want.Revoke > 0 {
			to.revokes[want.Revoke] = true
		}
		for _, holder := range want.Open {
			_, _ = fmt.Sscan(holder.Pod, &to.opens[holder.Token])
		}
	})
	add(func(to *served) { to.revoked = max(to.revoked, w.confirmed) })
	add(func(to *served) { to.barred = w.holder > 0 })
	highest := authority.HighestToken(&vm.Status)
	if w.barred || w.holder == 0 {
		add(func(to *served) { to.revokes[highest] = highest > 0 })
	}
	lease := authority.LeaseAfter(&vm.Status, time.Minute, begin)
	if (w.barred || w.holder == 0) && w.revoked >= highest && lease.FencingToken < tokens {
		add(func(to *served) {
			to.holder, to.token, to.barred, to.underWay = lease.FencingToken, lease.FencingToken, false, false
		})
	}
	add(func(to *served) { to.underWay = false })
}

func (off rulesOff) hypervisors(w served, add func(func(*served))) {
	vm := w.real()
	access := authority.AccessOf(vm)
	if w.holder > 0 && !w.barred && (access == authority.AccessOpen || off.grantEarly) {
		add(func(to *served) { to.runs[w.token] = w.holder })
	}
	token := authority.NextToken(&vm.Status, begin)
	if w.holder > 0 && w.runs[w.token] == w.holder && !w.underWay && token < tokens {
		add(func(to *served) { to.source, to.target, to.targetToken, to.underWay = w.holder, token, token, true })
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
			add(func(to *served) { to.holder, to.token, to.barred, to.underWay = pod, got, false, false })
		}
	}
}

// server does what was decided, and ends.
func server(w served, add func(func(*served))) {
	for upTo := range int64(tokens) {
		if !w.revokes[upTo] {
			continue
		}
		for _, answered := range []bool{false, true} {
			add(func(to *served) {
				to.revoke(upTo)
				if answered {
					to.confirmed = max(to.confirmed, upTo)
				}
			})
		}
	}
	for token, pod := range w.opens {
		if pod > 0 && int64(token) > w.done && w.open[token] == 0 {
			add(func(to *served) { to.open[token], to.opened = pod, max(to.opened, int64(token)) })
		}
	}
	add(func(to *served) { to.open, to.confirmed = [tokens]int64{}, 0 }) // its process ends
	add(func(to *served) {                                               // its host crashes
		to.revoke(w.opened)
		to.open, to.confirmed = [tokens]int64{}, 0
	})
	if w.holder > 0 && w.token <= w.done && w.opens[w.token] > 0 { // it refuses the holder
		add(func(to *served) { to.confirmed = max(to.confirmed, w.token) })
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

// wrong returns what must not be: somebody else can change the disks of who has got a lease, or will.
func (w *served) wrong() string {
	for token, pod := range w.runs {
		if pod == 0 {
			continue
		}
		if w.done < int64(token)-1 {
			return fmt.Sprintf("pod %d runs with token %d, and only %d is revoked", pod, token, w.done)
		}
		if has := w.open[token]; has != 0 && has != pod {
			return fmt.Sprintf("pod %d runs with the token %d of pod %d", pod, token, has)
		}
		for other, has := range w.open {
			before := w.underWay && int64(other) == w.targetToken || w.runs[other] == 0
			if has != 0 && other != token && !before && other < token {
				return fmt.Sprintf("pods %d and %d can change the disks", pod, has)
			}
		}
	}
	return ""
}

// explore returns all worlds, or what is wrong in one of them.
func (off rulesOff) explore() (all map[served][]served, wrong string) {
	all, queue := map[served][]served{{}: nil}, []served{{}}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		if wrong := w.wrong(); wrong != "" {
			return all, fmt.Sprintf("%s: %+v", wrong, w)
		}
		for _, to := range off.edges(w) {
			all[w] = append(all[w], to)
			if _, known := all[to]; !known {
				all[to] = nil
				queue = append(queue, to)
			}
		}
	}
	return all, ""
}

// TestServedExploration: whatever is lost, late or repeated, whoever crashes when, nobody has a lease while somebody with
// another token can change the disks, or will. And somebody gets the VM again.
func TestServedExploration(t *testing.T) {
	all, wrong := rulesOff{}.explore()
	if wrong != "" {
		t.Fatal(wrong)
	}
	t.Logf("%d states", len(all))
	hopeful := recovers(all)
	for w := range all {
		if !hopeful[w] {
			t.Fatalf("nobody ever gets the VM after %+v", w)
		}
	}
}

// recovers returns the worlds from which there is a way to one in which the holder has its lease and its disks. Of those near
// the last token nobody knows it.
func recovers(all map[served][]served) map[served]bool {
	good, from := map[served]bool{}, map[served][]served{}
	var queue []served
	for w, edges := range all {
		for _, to := range edges {
			from[to] = append(from[to], w)
		}
		if last := max(w.token, w.targetToken, w.done) >= tokens-2; last || w.token > 0 && w.runs[w.token] == w.holder && w.open[w.token] == w.holder {
			good[w] = true
			queue = append(queue, w)
		}
	}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		for _, before := range from[w] {
			if !good[before] {
				good[before] = true
				queue = append(queue, before)
			}
		}
	}
	return good
}

// TestServedRules: without each rule the exploration finds what must not be.
func TestServedRules(t *testing.T) {
	for name, off := range map[string]rulesOff{"grant early": {grantEarly: true}, "the same token": {sameToken: true}} {
		if _, wrong := off.explore(); wrong == "" {
			t.Errorf("%s: nothing is wrong", name)
		}
	}
}
