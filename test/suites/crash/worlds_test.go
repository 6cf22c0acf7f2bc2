package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// remains is the state that a crash leaves.
type remains struct {
	// done is what happened before the crash: the executed operations with their requests, whether each changed
	// nothing, sorted, and the number of writes by others. Since work is done in parallel, this may differ
	// between runs. Different worlds are then not comparable.
	done []string
	// world is everything that exists, without values that are random in each run.
	world []string
}

// TestWorlds_EquivalentCrashPointsAreSkipped checks that a crash point that is skipped because it is equivalent to another one
// leaves the same world as that one.
func TestWorlds_EquivalentCrashPointsAreSkipped(t *testing.T) {
	tier.All(t)
	fleet, enough := newFleet(t), 2
	if tier.Exhaustive() {
		enough = 10
	}
	// Scenarios with little parallelism, so that most pairs can be compared.
	for _, name := range partOf([]string{"delete", "create with initialize", "create, apart", "delete with drain", "scale down by name", "capi create"}, 1) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fleet.compare(t, called(name), enough)
		})
	}
}

// pairsForOne is the maximum number of pairs that are run for each comparable one.
const pairsForOne = 3

// compare runs pairs of crash points of which one would be skipped, until enough could be compared. The pairs
// come from all over the scenario, in an order that is the same in each run.
func (f fleet) compare(t *testing.T, s scenario, enough int) {
	whole := f.play(t, s, nil, sound)
	if whole.err != nil {
		t.Fatalf("without a crash: %v\n%s", whole.err, whole.transcript)
	}
	compared := 0
	pairs := pairsOf(whole)
	for _, i := range rand.New(rand.NewPCG(1, 0)).Perm(len(pairs))[:min(pairsForOne*enough, len(pairs))] {
		pair := pairs[i]
		out, instead := f.remainsOf(t, s, pair.out), f.remainsOf(t, s, pair.instead)
		if out == nil || instead == nil {
			t.Logf("%s and %s: they did not both come", pair.out, pair.instead)
			continue
		}
		if diff := cmp.Diff(out.world, instead.world); diff != "" {
			if done := cmp.Diff(out.done, instead.done); done != "" {
				t.Logf("not the same was done before (-killed %s +killed %s):\n%s", pair.out, pair.instead, done)
				continue
			}
			t.Errorf("what is left (-killed %s +killed %s):\n%s", pair.out, pair.instead, diff)
		}
		if compared++; compared == enough {
			break
		}
	}
	t.Logf("%d pairs of %d compared", compared, len(pairs))
	if compared == 0 {
		t.Error("no pair left the same")
	}
}

// crashPointPair is a crash point that is skipped, and the one that is tried instead.
type crashPointPair struct{ out, instead crash }

// pairsOf returns the pairs of a run without a crash.
func pairsOf(whole result) []crashPointPair {
	var pairs []crashPointPair
	for _, p := range whole.points {
		pairs = append(pairs, crashPointPair{crash{point: p, way: after}, crash{point: p, way: lost}})
		succeeded, succeeds := whole.same.succeeding[p]
		switch idle := whole.same.idle[p]; {
		case succeeds && idle && p.asks():
			pairs = append(pairs, crashPointPair{crash{point: p, way: lost}, crash{point: succeeded, way: lost}})
		case idle:
			pairs = append(pairs, crashPointPair{crash{point: p, way: before}, crash{point: p, way: lost}})
		}
		if succeeds {
			pairs = append(pairs, crashPointPair{crash{point: p, way: before}, crash{point: succeeded, way: lost}})
		}
	}
	return pairs
}

// remainsOf runs a crash, and inspects what it leaves before the next manager starts. It returns nil if the crash
// point is not reached.
func (f fleet) remainsOf(t *testing.T, s scenario, c crash) *remains {
	t.Helper()
	var left *remains
	s.onCrash = func(ctx context.Context, r *run) error {
		var err error
		left, err = r.remains(ctx)
		return err
	}
	result := f.play(t, s, &c, sound)
	if result.err != nil {
		t.Fatalf("killed %s: %v\n%s", c, result.err, result.transcript)
	}
	return left
}

// remains returns the state while no manager is running, and no operation is in progress.
func (r *run) remains(ctx context.Context) (*remains, error) {
	var left *remains
	err := r.await(ctx, "that all stands still", func(ctx context.Context, r *run) (err error) {
		was, changing := r.outside()
		if !r.gate.settled() || changing {
			return errors.New("something is under way")
		}
		if left, err = r.look(ctx); err != nil {
			return err
		}
		if is, changing := r.outside(); changing || is != was {
			return errors.New("something was changed meanwhile")
		}
		return nil
	})
	return left, err
}

// look reads the current state.
func (r *run) look(ctx context.Context) (*remains, error) {
	left := &remains{}
	for _, operation := range r.gate.carriedOut() {
		left.done = append(left.done, randomNames.ReplaceAllString(operation, "?"))
	}
	slices.Sort(left.done)
	control, _ := r.writes.control.count()
	target, _ := r.writes.target.count()
	left.done = append(left.done, fmt.Sprintf("%d writes of others", control+target))
	if err := left.addObjects(ctx, r); err != nil {
		return nil, err
	}
	vms, err := r.cloud.VMs()
	if err != nil {
		return nil, err
	}
	for _, vm := range vms {
		left.world = append(left.world, anonymous(vm))
	}
	slices.Sort(left.world)
	return left, nil
}

// addObjects adds the objects of a run: those of its namespace, its nodes and its bootstrap tokens.
func (d *remains) addObjects(ctx context.Context, r *run) error {
	for _, list := range []client.ObjectList{
		&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}, &v1alpha1.MachineClassList{},
		&infrav1.MillwrightMachineList{}, &core.MachineList{}, &core.ClusterList{}, &corev1.SecretList{}, &corev1.PodList{},
	} {
		if err := r.list(ctx, list); err != nil {
			return err
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		d.add(objects...)
	}
	if err := r.eachNode(ctx, func(node *corev1.Node) error { d.add(node); return nil }); err != nil {
		return err
	}
	tokens, err := r.tokensIn(ctx, r.control)
	for i := range tokens {
		d.add(&tokens[i])
	}
	return err
}

func (d *remains) add(objects ...runtime.Object) {
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			panic(err) // not an API object
		}
		accessor.SetManagedFields(nil)
		accessor.SetResourceVersion("")
		d.world = append(d.world, anonymous(object))
	}
}

// randomNames matches values that are random or depend on the time: UIDs, times, versions, addresses, suffixes of
// names, hashes, tokens.
var randomNames = regexp.MustCompile(`"resourceVersion":"\d+"|\bfd00:[0-9a-f:]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[0-9:.]+Z?|-[bcdfghjklmnpqrstvwxz2456789]{5}\b|"(token-id|token-secret|expiration|description)":"[^"]*"|-[0-9a-f]{8,}\b|bootstrap-token-[a-z0-9]+`)

// anonymous returns an object without random values.
func anonymous(object any) string {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	return randomNames.ReplaceAllString(string(text), "?")
}

// TestWorlds_RejectedWritesDiffer checks that a rejected write, as after a conflicting one, differs from the same write that
// succeeded.
func TestWorlds_RejectedWritesDiffer(t *testing.T) {
	var done []string
	for _, idle := range []bool{false, true} {
		g := newGate(nil)
		g.did(operation{}, []byte(`{}`), idle) // does not count yet
		g.count(true)
		g.did(operation{}, []byte(`{}`), idle)
		done = append(done, g.carriedOut()...)
	}
	if len(done) != 2 || done[0] == done[1] {
		t.Errorf("done was %q", done)
	}
}

// TestWorlds_OnlyRandomValuesAreMasked checks that only random values are removed.
func TestWorlds_OnlyRandomValuesAreMasked(t *testing.T) {
	got := anonymous(map[string]string{
		"uid": "6f1b3c1e-5b0d-4c1c-9a51-2f6f0a4c7d10", "at": "2026-01-02T03:04:05Z", "name": "pool-z7k4b-x9x2c", "phase": "Running", "node": "worker-1",
		"address": "fd00::72f7:8855:ca9f:d31d", "resourceVersion": "544",
	})
	const want = `{"address":"?","at":"?","name":"pool??","node":"worker-1","phase":"Running",?,"uid":"?"}`
	if got != want {
		t.Errorf("anonymous is %s, want %s", got, want)
	}
	if a, b := anonymous("Running"), anonymous("Pending"); a == b {
		t.Errorf("%s and %s are the same", a, b)
	}
}
