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

// names is how many Pods there can be. Pod and claim of a target have one name; the first claim is "0". That of its data
// disk has more behind it.
const names = 4

// dataDisk is the name of the data disk, and dataClaim that of its claim beside another claim.
const dataDisk = "d"

func dataClaim(claim string) string { return claim + "-" + dataDisk }

// life is that of a Pod.
type life uint8

const (
	none life = iota
	alive
	deleting // with a process that runs
	finished
	gone
)

type pod struct {
	life
	claim, data string
}

// disks are those of one name.
type disks struct {
	root, data           bool // there is a claim
	rootWhole, dataWhole bool // it has the guest's data, all of them
}

// record is v1alpha1.VirtualMachineMigration as a comparable value.
type record struct{ phase, source, target, uid, claim string }

// status is what the rules change.
type status struct {
	active, uid, claim, data string
	migration                record
}

// op is a write of the controller.
type op struct {
	kind, name string
	// from is the status that it was decided on: those that change the status do only that one.
	from status
	to   status
}

// world is everything that counts.
type world struct {
	status
	pods   [names]pod
	claims [names]disks
	next   int    // the next unused name
	failed string // the target that the source gave up
	op     op     // of the controller, decided and not done
	shared bool   // all Pods have the same disks
}

func name(i int) string { return fmt.Sprint(i) }

func (w *world) disks(name string) *disks { return &w.claims[name[0]-'0'] }

func (w *world) pod(name string) *pod { return &w.pods[name[0]-'0'] }

func (p pod) runs() bool { return p.life == alive || p.life == deleting }

// object returns a Pod as the rules see it; nil if there is none.
func (w *world) object(name string) *corev1.Pod {
	if name == "" || w.pod(name).life == none || w.pod(name).life == gone {
		return nil
	}
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	if w.shared {
		object.Spec.Containers = []corev1.Container{{
			Name: podspec.ContainerName, Env: []corev1.EnvVar{{Name: vmpb.EnvSpec, Value: `{"rootDiskShared":true}`}},
		}}
	}
	switch w.pod(name).life {
	case deleting:
		object.DeletionTimestamp = &metav1.Time{Time: epoch}
	case finished:
		object.Status.Phase = corev1.PodFailed
	}
	return object
}

func (w *world) objects() []*corev1.Pod {
	var objects []*corev1.Pod
	for i := range w.pods {
		if object := w.object(name(i)); object != nil {
			objects = append(objects, object)
		}
	}
	return objects
}

var epoch = time.Unix(1e9, 0)

// real returns the status as the rules have it.
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

// guards switches rules off.
type guards struct{ anyTarget, claimsInUse, claimOfTarget, podsOfTarget, dataStays bool }

func (g guards) isTarget(s status, pod string) bool { return g.anyTarget || IsTarget(s.real(), pod) }

func (g guards) edges(w world) []explore.Edge[world] {
	return slices.Concat(g.hypervisors(w), g.ends(w), g.controller(w))
}

// hypervisors are what source and target do.
func (g guards) hypervisors(w world) []explore.Edge[world] {
	var edges []explore.Edge[world]
	add := func(name string, fault bool, change func(*world)) {
		edges = append(edges, w.changed(name, fault, change)...)
	}
	underWay, target := UnderWay(w.real()), w.migration.target
	source := w.pod(w.active).runs() && w.uid != ""
	if source && !underWay && w.next < names-1 {
		add("ask", true, func(to *world) {
			to.status = w.change(func(real *v1alpha1.VirtualMachineStatus) {
				Reserve(real, name(w.next), w.object(w.active), Order{}, epoch)
			})
			to.next++
		})
	}
	if underWay && source && w.pod(target).runs() && !w.shared {
		add("copy", false, func(to *world) { to.disks(target).rootWhole = true })
		if w.disks(target).rootWhole { // one after the other
			add("copy data", false, func(to *world) { to.disks(target).dataWhole = true })
		}
	}
	if underWay && source {
		add("give up", false, func(to *world) {
			to.failed, to.disks(target).rootWhole, to.disks(target).dataWhole = target, false, false
		})
	}
	return append(edges, g.switchovers(w)...)
}

// changed is the edge to a changed world, if it is another one.
func (w world) changed(name string, fault bool, change func(*world)) []explore.Edge[world] {
	to := w
	change(&to)
	if to == w {
		return nil
	}
	return []explore.Edge[world]{{To: to, Name: name, Fault: fault}}
}

// complete reports whether a Pod was created as a target, and has the disks to which the guest may go.
func (w *world) complete(us string) bool {
	if w.shared {
		return us != w.active && w.pod(us).runs()
	}
	own := w.disks(us)
	return w.pod(us).runs() && us != w.active && own.rootWhole && own.dataWhole && w.pod(us).claim == us
}

// switchovers are what targets with a whole copy ask for, or with the same disks.
func (g guards) switchovers(w world) []explore.Edge[world] {
	var edges []explore.Edge[world]
	add := func(name string, change func(*world)) { edges = append(edges, w.changed(name, false, change)...) }
	for i := range w.pods {
		us := name(i)
		switch {
		case !w.complete(us):
		case !g.isTarget(w.status, us):
			add("refused", func(to *world) { to.pods[i].life = finished })
		default:
			add("switch over", func(to *world) {
				to.status = w.change(func(real *v1alpha1.VirtualMachineStatus) {
					Move(real, v1alpha1.VirtualMachineAuthority{ActivePodName: us, ActivePodUID: types.UID(us), VolumeClaimName: w.pods[i].claim}, epoch)
					if !g.dataStays {
						Mount(real, []v1alpha1.DataDiskStatus{{Name: dataDisk, VolumeClaimName: w.pods[i].data}})
					}
				})
				if !w.shared {
					to.disks(w.claim).rootWhole, to.disks(w.data).dataWhole = false, false
				}
			})
		}
	}
	return edges
}

// ends are the ends of Pods.
func (g guards) ends(w world) []explore.Edge[world] {
	var edges []explore.Edge[world]
	for i, p := range w.pods {
		us := name(i)
		add := func(what string, fault bool, life life) {
			to := w
			to.pods[i].life = life
			if us == w.active { // with its memory, what a target has is of no use but for the switchover
				what += " (authoritative)"
			}
			edges = append(edges, explore.Edge[world]{To: to, Name: what + " " + us, Fault: fault})
		}
		spare := us != w.active || w.next < names
		allowed := us == w.active || g.isTarget(w.status, us)
		switch {
		case p.runs() && !allowed:
			add("terminate", false, finished)
		case p.runs() && spare:
			add("die", true, finished)
		}
		if p.life == alive && spare {
			add("evict", true, deleting)
		}
		switch {
		case p.life == deleting && spare:
			add("end", false, gone)
		case p.life == finished:
			add("forget", us != w.active, gone)
		}
	}
	return edges
}

// controller is a pass, its write, or its crash.
func (g guards) controller(w world) []explore.Edge[world] {
	if w.op != (op{}) {
		done, lost := w, w
		g.do(&done)
		done.op, lost.op = op{}, op{}
		return []explore.Edge[world]{{To: done, Name: "done: " + w.op.kind + " " + w.op.name}, {To: lost, Name: "crash", Fault: true}}
	}
	var edges []explore.Edge[world]
	for _, late := range []bool{false, true} {
		for _, decided := range g.pass(w, late) {
			to := w
			decided.from = w.status
			to.op = decided
			edges = append(edges, explore.Edge[world]{To: to, Name: fmt.Sprintf("decide (late %t)", late), Fault: late})
		}
	}
	return edges
}

// pass returns the next write. late is whether limits of time have passed.
func (g guards) pass(w world, late bool) []op {
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

// removals are the Pods and claims that go.
func (g guards) removals(w world) []op {
	var ops []op
	for i, p := range w.pods {
		if us := name(i); us != w.active && (p.life == alive || p.life == finished) && (g.podsOfTarget || !IsTarget(w.real(), us)) {
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

func (g guards) unused(w world, claim string) bool {
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
		there := func(claim string) bool { return w.disks(claim).data }
		return UnusedDataClaim(w.real(), dataDisk, claim, there, pods, mounts)
	}
	return UnusedClaim(w.real(), claim, pods, mounts)
}

// follow gives the VM another hypervisor.
func (w world) follow() []op {
	switch {
	case w.uid == "":
		return []op{{kind: "create", name: w.active}}
	case w.next < names:
		to := w.authority(v1alpha1.VirtualMachineAuthority{ActivePodName: name(w.next), VolumeClaimName: w.claim})
		return []op{{kind: "reserve", name: name(w.next), to: to}}
	}
	return nil
}

func (w world) migrate(source *corev1.Pod, late bool) op {
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

// do does the write that was decided.
func (g guards) do(w *world) {
	i := 0
	if w.op.name != "" {
		i = int(w.op.name[0] - '0')
	}
	p := &w.pods[i]
	switch w.op.kind {
	case "create", "create target":
		if p.life == none || p.life == gone {
			*p = w.created()
		}
	case "create claim":
		w.claims[i].root = true
	case "create data claim":
		w.claims[i].data = true
	case "delete pod":
		switch p.life {
		case alive:
			p.life = deleting
		case finished:
			p.life = gone
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

// created returns the Pod that was decided: a target has claims of its own, unless they are shared.
func (w *world) created() pod {
	if w.op.kind == "create target" && !w.shared {
		return pod{alive, w.op.name, dataClaim(w.op.name)}
	}
	return pod{alive, w.op.from.claim, w.op.from.data}
}

var (
	errDiskLost   = errors.New("the disk is lost")
	errOldDisk    = errors.New("the disk lacks data")
	errPulled     = errors.New("a disk was deleted below its pod")
	errKilled     = errors.New("the authoritative pod was deleted")
	errNoMigrated = errors.New("no migration ever succeeds")
)

// checkDisks returns what is wrong with the disks of the VM.
func (w world) checkDisks() error {
	root, data := w.disks(w.claim), w.disks(w.data)
	switch {
	case !root.root || !data.data:
		return errDiskLost
	case !root.rootWhole || !data.dataWhole:
		return errOldDisk
	}
	return nil
}

// checkDeletion returns what is wrong with an event that leads to a world.
func checkDeletion(by string, w world) error {
	if strings.HasPrefix(by, "done: delete pod "+w.active) {
		return errKilled
	}
	for _, p := range w.pods {
		if p.runs() && (by == "done: delete claim "+p.claim || by == "done: delete claim "+p.data) {
			return errPulled
		}
	}
	return nil
}

// rest reports whether only the authoritative Pod and its disk are left.
func (w *world) rest() bool {
	for i, p := range w.pods {
		if us := name(i); us != w.active && p.life != none && p.life != gone || us != w.claim && w.claims[i].root || dataClaim(us) != w.data && w.claims[i].data {
			return false
		}
	}
	return w.pod(w.active).life == alive && w.uid != "" && w.op == (op{}) && !UnderWay(w.real())
}

// explore visits all worlds, and returns how many there are. shared is whether the targets have the disks of the source.
func (g guards) explore(shared bool) (int, error) {
	start := world{status: status{active: "0", uid: "0", claim: "0", data: dataClaim("0")}, next: 1, shared: shared}
	start.pods[0], start.claims[0] = pod{alive, "0", dataClaim("0")}, disks{true, true, true, true}
	migrated := false
	n, err := explore.Model[world]{
		Start: start, Edges: g.edges, CheckStep: checkDeletion, Good: func(w world) bool { return w.rest() },
		Check: func(w world) error {
			migrated = migrated || w.active == w.migration.target
			return w.checkDisks()
		},
	}.Explore()
	if err == nil && !migrated {
		err = errNoMigrated
	}
	return n, err
}

// TestExplore: whatever dies when, no disk is lost, and it comes to rest.
func TestExplore(t *testing.T) {
	for name, shared := range map[string]bool{"disks that are copied": false, "shared disks": true} {
		t.Run(name, func(t *testing.T) {
			n, err := guards{}.explore(shared)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d worlds", n)
			if n < 1000 {
				t.Errorf("only %d worlds", n)
			}
		})
	}
}

// TestEachGuardCounts: without any of these rules something goes wrong.
func TestEachGuardCounts(t *testing.T) {
	for name, c := range map[string]struct {
		guards
		want error
	}{
		"the switchover is for the target": {guards{anyTarget: true}, nil},
		"disks of pods stay":               {guards{claimsInUse: true}, errPulled},
		"the target's disk stays":          {guards{claimOfTarget: true}, errPulled},
		"the target's pod stays":           {guards{podsOfTarget: true}, nil},
		"the data disk moves, too":         {guards{dataStays: true}, errOldDisk},
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
