package migration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/explore"
)

// names is the number of possible Pods. The Pod and the claim of a target have the same name; the first claim is "0".
// The name of a data disk's claim has a suffix.
const names = 4

// dataDisk is the name of the data disk. dataClaim returns the name of its claim that belongs to the claim of a root
// disk.
const dataDisk = "d"

func dataClaim(claim string) string { return claim + "-" + dataDisk }

// phase is the phase of a Pod.
type phase uint8

const (
	none phase = iota
	alive
	deleting // the process is still running
	finished
	gone
)

type pod struct {
	phase
	claim, data string
}

// disks describes the claims with one name.
type disks struct {
	root, data                 bool // the claim exists
	rootComplete, dataComplete bool // the disk has all of the guest's data
}

// record is v1alpha1.VirtualMachineMigration as a comparable value.
type record struct{ phase, source, target, uid, claim string }

// status is the modeled part of the VM's status.
type status struct {
	active, uid, claim, data string
	migration                record
}

// op is a write of the controller that was decided but not executed yet.
type op struct {
	kind, name string
	// from is the status on which the decision was based. A write of the status succeeds only if that is still
	// current.
	from status
	to   status
}

// state is the state of the model.
type state struct {
	status
	pods   [names]pod
	claims [names]disks
	next   int    // the next unused name
	failed string // the target whose migration the source gave up
	op     op     // the pending write of the controller
	shared bool   // all Pods use the same disks
}

func name(i int) string { return fmt.Sprint(i) }

func (w *state) disks(name string) *disks { return &w.claims[name[0]-'0'] }

func (w *state) pod(name string) *pod { return &w.pods[name[0]-'0'] }

func (p pod) runs() bool { return p.phase == alive || p.phase == deleting }

// object returns a Pod in the form that the tested functions take; nil if it does not exist.
func (w *state) object(name string) *corev1.Pod {
	if name == "" || w.pod(name).phase == none || w.pod(name).phase == gone {
		return nil
	}
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	if w.shared {
		object.Spec.Containers = []corev1.Container{{
			Name: podspec.ContainerName, Env: []corev1.EnvVar{{Name: vmpb.EnvSpec, Value: `{"rootDiskShared":true}`}},
		}}
	}
	switch w.pod(name).phase {
	case deleting:
		object.DeletionTimestamp = &metav1.Time{Time: epoch}
	case finished:
		object.Status.Phase = corev1.PodFailed
	}
	return object
}

func (w *state) objects() []*corev1.Pod {
	var objects []*corev1.Pod
	for i := range w.pods {
		if object := w.object(name(i)); object != nil {
			objects = append(objects, object)
		}
	}
	return objects
}

var epoch = time.Unix(1e9, 0)

// real returns the status in the form that the tested functions take.
func (s status) real() *v1alpha1.VirtualMachineStatus {
	real := &v1alpha1.VirtualMachineStatus{VirtualMachineAuthority: v1alpha1.VirtualMachineAuthority{
		ActivePodName: s.active, ActivePodUID: types.UID(s.uid), VolumeClaimName: s.claim,
	}}
	real.DataDisks = []v1alpha1.DataDiskStatus{{Name: dataDisk, VolumeClaimName: s.data, Prepared: true}}
	if m := s.migration; m != (record{}) {
		real.Migration = &v1alpha1.VirtualMachineMigration{
			Phase: v1alpha1.MigrationPhase(m.phase), SourcePodName: m.source, TargetPodName: m.target,
			TargetPodUID: types.UID(m.uid), TargetVolumeClaimName: m.claim, StartTime: metav1.NewTime(epoch),
		}
	}
	return real
}

func (s status) change(change func(*v1alpha1.VirtualMachineStatus)) status {
	real := s.real()
	change(real)
	s = status{active: real.ActivePodName, uid: string(real.ActivePodUID), claim: real.VolumeClaimName, data: real.DataDisks[0].VolumeClaimName}
	if m := real.Migration; m != nil {
		s.migration = record{string(m.Phase), m.SourcePodName, m.TargetPodName, string(m.TargetPodUID), m.TargetVolumeClaimName}
	}
	return s
}

func (s status) authority(next v1alpha1.VirtualMachineAuthority) status {
	return s.change(func(real *v1alpha1.VirtualMachineStatus) { Move(real, next, epoch) })
}

// guards disables rules.
type guards struct{ anyTarget, claimsInUse, claimOfTarget, podsOfTarget, dataStays bool }

func (g guards) isTarget(s status, pod string) bool { return g.anyTarget || IsTarget(s.real(), pod) }

func (g guards) edges(w state) []explore.Edge[state] {
	return slices.Concat(g.hypervisors(w), g.terminations(w), g.controller(w))
}

// hypervisors returns the transitions caused by sources and targets.
func (g guards) hypervisors(w state) []explore.Edge[state] {
	var edges []explore.Edge[state]
	add := func(name string, fault bool, change func(*state)) {
		edges = append(edges, w.changed(name, fault, change)...)
	}
	underWay, target := UnderWay(w.real()), w.migration.target
	source := w.pod(w.active).runs() && w.uid != ""
	if source && !underWay && w.next < names-1 {
		add("reserve target", true, func(to *state) {
			to.status = w.change(func(real *v1alpha1.VirtualMachineStatus) {
				Reserve(real, name(w.next), w.object(w.active), Order{}, epoch)
			})
			to.next++
		})
	}
	if underWay && source && w.pod(target).runs() && !w.shared {
		add("copy", false, func(to *state) { to.disks(target).rootComplete = true })
		if w.disks(target).rootComplete { // the disks are copied one after the other
			add("copy data", false, func(to *state) { to.disks(target).dataComplete = true })
		}
	}
	if underWay && source {
		add("give up", false, func(to *state) {
			to.failed, to.disks(target).rootComplete, to.disks(target).dataComplete = target, false, false
		})
	}
	return append(edges, g.switchovers(w)...)
}

// changed returns the edge to a changed state; none if the state did not change.
func (w state) changed(name string, fault bool, change func(*state)) []explore.Edge[state] {
	to := w
	change(&to)
	if to == w {
		return nil
	}
	return []explore.Edge[state]{{To: to, Name: name, Fault: fault}}
}

// complete reports whether a Pod was created as a target and has complete disks.
func (w *state) complete(us string) bool {
	if w.shared {
		return us != w.active && w.pod(us).runs()
	}
	own := w.disks(us)
	return w.pod(us).runs() && us != w.active && own.rootComplete && own.dataComplete && w.pod(us).claim == us
}

// switchovers returns the switchovers that targets with complete or shared disks request.
func (g guards) switchovers(w state) []explore.Edge[state] {
	var edges []explore.Edge[state]
	add := func(name string, change func(*state)) { edges = append(edges, w.changed(name, false, change)...) }
	for i := range w.pods {
		us := name(i)
		switch {
		case !w.complete(us):
		case !g.isTarget(w.status, us):
			add("refused", func(to *state) { to.pods[i].phase = finished })
		default:
			add("switch over", func(to *state) {
				to.status = w.change(func(real *v1alpha1.VirtualMachineStatus) {
					Move(real, v1alpha1.VirtualMachineAuthority{ActivePodName: us, ActivePodUID: types.UID(us), VolumeClaimName: w.pods[i].claim}, epoch)
					if !g.dataStays {
						Mount(real, []v1alpha1.DataDiskStatus{{Name: dataDisk, VolumeClaimName: w.pods[i].data}})
					}
				})
				if !w.shared {
					to.disks(w.claim).rootComplete, to.disks(w.data).dataComplete = false, false
				}
			})
		}
	}
	return edges
}

// terminations returns the transitions in which Pods terminate or disappear.
func (g guards) terminations(w state) []explore.Edge[state] {
	var edges []explore.Edge[state]
	for i, p := range w.pods {
		us := name(i)
		add := func(what string, fault bool, phase phase) {
			to := w
			to.pods[i].phase = phase
			if us == w.active { // without the source's memory, a target can only switch over
				what += " (authoritative)"
			}
			edges = append(edges, explore.Edge[state]{To: to, Name: what + " " + us, Fault: fault})
		}
		spare := us != w.active || w.next < names
		allowed := us == w.active || g.isTarget(w.status, us)
		switch {
		case p.runs() && !allowed:
			add("terminate", false, finished)
		case p.runs() && spare:
			add("crash", true, finished)
		}
		if p.phase == alive && spare {
			add("evict", true, deleting)
		}
		switch {
		case p.phase == deleting && spare:
			add("disappear", false, gone)
		case p.phase == finished:
			add("garbage-collect", us != w.active, gone)
		}
	}
	return edges
}

// controller returns the transitions of the controller: the decision of a pass, its write, or a crash before the
// write.
func (g guards) controller(w state) []explore.Edge[state] {
	if w.op != (op{}) {
		done, lost := w, w
		g.do(&done)
		done.op, lost.op = op{}, op{}
		return []explore.Edge[state]{{To: done, Name: "done: " + w.op.kind + " " + w.op.name}, {To: lost, Name: "crash", Fault: true}}
	}
	var edges []explore.Edge[state]
	for _, late := range []bool{false, true} {
		for _, decided := range g.pass(w, late) {
			to := w
			decided.from = w.status
			to.op = decided
			edges = append(edges, explore.Edge[state]{To: to, Name: fmt.Sprintf("decide (late %t)", late), Fault: late})
		}
	}
	return edges
}

// pass returns the next writes. late is whether time limits have passed.
func (g guards) pass(w state, late bool) []op {
	source := w.object(w.active)
	if source != nil && w.uid == "" {
		to := w.status
		to.uid = w.active
		return []op{{kind: "record", name: w.active, to: to}}
	}
	if UnderWay(w.real()) {
		if decided := w.migrate(source, late); decided != (op{}) {
			return []op{decided}
		}
	}
	ops := g.removals(w)
	if source == nil || source.Status.Phase == corev1.PodFailed {
		ops = append(ops, w.follow()...)
	}
	return ops
}

// removals returns the deletions of Pods and claims.
func (g guards) removals(w state) []op {
	var ops []op
	for i, p := range w.pods {
		if us := name(i); us != w.active && (p.phase == alive || p.phase == finished) && (g.podsOfTarget || !IsTarget(w.real(), us)) {
			ops = append(ops, op{kind: "delete pod", name: us})
		}
	}
	for i := range w.claims {
		if w.claims[i].root && g.unused(w, name(i)) {
			ops = append(ops, op{kind: "delete claim", name: name(i)})
		}
		if w.claims[i].data && g.unused(w, dataClaim(name(i))) {
			ops = append(ops, op{kind: "delete claim", name: dataClaim(name(i))})
		}
	}
	return ops
}

func (g guards) unused(w state, claim string) bool {
	pods := w.objects()
	if g.claimsInUse {
		pods = nil
	}
	mounts := func(object *corev1.Pod) []string {
		pod := w.pod(object.Name)
		return []string{pod.claim, pod.data}
	}
	isData := strings.HasSuffix(claim, dataClaim(""))
	switch {
	case g.claimOfTarget && w.migration.claim == claim && claim != w.claim:
		return true
	case isData:
		exists := func(claim string) bool { return w.disks(claim).data }
		return UnusedDataClaim(w.real(), dataDisk, claim, exists, pods, mounts)
	}
	return UnusedClaim(w.real(), claim, pods, mounts)
}

// follow returns the writes that give the VM another hypervisor.
func (w state) follow() []op {
	switch {
	case w.uid == "":
		return []op{{kind: "create", name: w.active}}
	case w.next < names:
		to := w.authority(v1alpha1.VirtualMachineAuthority{ActivePodName: name(w.next), VolumeClaimName: w.claim})
		return []op{{kind: "reserve", name: name(w.next), to: to}}
	}
	return nil
}

func (w state) migrate(source *corev1.Pod, late bool) op {
	facts := Facts{
		Status: w.real(), Source: source, Target: w.object(w.migration.target), Claims: w.shared || w.disks(w.migration.target).root && w.disks(w.migration.target).data,
		Incoming: !late, Now: epoch, Ordered: true,
	}
	if late {
		facts.Now = epoch.Add(time.Hour)
	}
	if w.failed != "" {
		facts.Report = &vmpb.ReportStateRequest_Migration{Phase: vmpb.ReportStateRequest_Migration_PHASE_FAILED, TargetPod: w.failed}
	}
	decided := Next(facts)
	target := w.migration.target
	switch {
	case decided.Failure != "":
		to := w.change(func(real *v1alpha1.VirtualMachineStatus) { Fail(real, decided.Failure, "", epoch) })
		return op{kind: "fail", name: target, to: to}
	case decided.CreateClaims && !w.disks(target).root:
		return op{kind: "create claim", name: target}
	case decided.CreateClaims:
		return op{kind: "create data claim", name: target}
	case decided.CreatePod:
		return op{kind: "create target", name: target}
	case decided.RecordPod:
		to := w.status
		to.migration.uid = target
		return op{kind: "record target", name: target, to: to}
	}
	return op{}
}

// do executes the pending write.
func (g guards) do(w *state) {
	i := 0
	if w.op.name != "" {
		i = int(w.op.name[0] - '0')
	}
	p := &w.pods[i]
	switch w.op.kind {
	case "create", "create target":
		if p.phase == none || p.phase == gone {
			*p = w.created()
		}
	case "create claim":
		w.claims[i].root = true
	case "create data claim":
		w.claims[i].data = true
	case "delete pod":
		switch p.phase {
		case alive:
			p.phase = deleting
		case finished:
			p.phase = gone
		}
	case "delete claim":
		if w.op.name == name(i) {
			w.claims[i].root = false
		} else {
			w.claims[i].data = false
		}
	default:
		if w.status == w.op.from {
			if w.op.kind == "reserve" {
				w.next++
			}
			w.status = w.op.to
		}
	}
}

// created returns the Pod that was decided. A target has its own claims unless the disks are shared.
func (w *state) created() pod {
	if w.op.kind == "create target" && !w.shared {
		return pod{alive, w.op.name, dataClaim(w.op.name)}
	}
	return pod{alive, w.op.from.claim, w.op.from.data}
}

var (
	errDiskLost    = errors.New("the disk is lost")
	errOldDisk     = errors.New("the disk lacks data")
	errInUse       = errors.New("a disk in use was deleted")
	errKilled      = errors.New("the authoritative pod was deleted")
	errNoMigration = errors.New("no migration ever succeeds")
)

// checkDisks returns what is wrong with the disks of the VM.
func (w state) checkDisks() error {
	root, data := w.disks(w.claim), w.disks(w.data)
	switch {
	case !root.root || !data.data:
		return errDiskLost
	case !root.rootComplete || !data.dataComplete:
		return errOldDisk
	}
	return nil
}

// checkDeletion returns what is wrong with the transition that leads to a state.
func checkDeletion(by string, w state) error {
	if strings.HasPrefix(by, "done: delete pod "+w.active) {
		return errKilled
	}
	for _, p := range w.pods {
		if p.runs() && (by == "done: delete claim "+p.claim || by == "done: delete claim "+p.data) {
			return errInUse
		}
	}
	return nil
}

// settled reports whether only the authoritative Pod and its disks are left.
func (w *state) settled() bool {
	for i, p := range w.pods {
		if us := name(i); us != w.active && p.phase != none && p.phase != gone || us != w.claim && w.claims[i].root || dataClaim(us) != w.data && w.claims[i].data {
			return false
		}
	}
	return w.pod(w.active).phase == alive && w.uid != "" && w.op == (op{}) && !UnderWay(w.real())
}

// explore visits all states and returns their number. shared is whether targets use the disks of the source.
func (g guards) explore(shared bool) (int, error) {
	start := state{status: status{active: "0", uid: "0", claim: "0", data: dataClaim("0")}, next: 1, shared: shared}
	start.pods[0], start.claims[0] = pod{alive, "0", dataClaim("0")}, disks{true, true, true, true}
	migrated := false
	n, err := explore.Model[state]{
		Start: start, Edges: g.edges, CheckStep: checkDeletion, Good: func(w state) bool { return w.settled() },
		Check: func(w state) error {
			migrated = migrated || w.active == w.migration.target
			return w.checkDisks()
		},
	}.Explore()
	if err == nil && !migrated {
		err = errNoMigration
	}
	return n, err
}

// TestMigration_ExploreStates checks that no disk is lost, whichever process crashes at whatever time, and that the system always
// settles.
func TestMigration_ExploreStates(t *testing.T) {
	for name, shared := range map[string]bool{"copied disks": false, "shared disks": true} {
		t.Run(name, func(t *testing.T) {
			n, err := guards{}.explore(shared)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d states", n)
			if n < 1000 {
				t.Errorf("only %d states", n)
			}
		})
	}
}

// TestGuards_EachIsNecessary checks that the exploration finds an error if a rule is disabled.
func TestGuards_EachIsNecessary(t *testing.T) {
	for name, c := range map[string]struct {
		guards
		want error
	}{
		"only the target may switch over":    {guards{anyTarget: true}, nil},
		"claims in use are kept":             {guards{claimsInUse: true}, errInUse},
		"the target's claim is kept":         {guards{claimOfTarget: true}, errInUse},
		"the target's pod is kept":           {guards{podsOfTarget: true}, nil},
		"data disks move with the authority": {guards{dataStays: true}, errOldDisk},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.guards.explore(false)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			t.Log(err)
		})
	}
}
