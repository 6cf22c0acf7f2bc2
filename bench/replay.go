package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// write is a kind of write that can be replayed.
type write struct {
	// method is POST, PATCH or DELETE.
	method string
	// resource is a key of replayObjects, with the subresource if there is one.
	resource string
}

// replayNamespace is the namespace of the objects of a replay.
const replayNamespace = "replay"

// replayObjects returns an object of each resource. Other resources are replaced by Machines, whose size is ordinary.
var replayObjects = map[string]func(name string) client.Object{
	"machines": func(name string) client.Object {
		machine := limitMachine(0)
		machine.Namespace, machine.Name = replayNamespace, name
		return machine
	},
	"machinesets": func(name string) client.Object {
		return &v1alpha1.MachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: replayNamespace, Name: name}}
	},
	"machinedeployments": func(name string) client.Object {
		return &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: replayNamespace, Name: name}, Spec: v1alpha1.MachineDeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": name}},
			Template: v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"name": name}}, Spec: machineSpec()},
		}}
	},
	"secrets": func(name string) client.Object { return secret(replayNamespace, name) },
	"nodes":   func(name string) client.Object { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} },
	"pods": func(name string) client.Object {
		pod := workload{name: name, node: replayNamespace, app: replayNamespace}.pod()
		pod.Namespace, pod.Labels = replayNamespace, nil // without a disruption budget
		return pod
	},
}

// replayStatus are patches of the status.
var replayStatus = map[string]string{
	"machines":           `{"status":{"currentStatus":{"phase":"Running"},"lastOperation":{"description":"Machine joined","state":%q,"type":"Create"}}}`,
	"machinesets":        `{"status":{"conditions":[{"type":"Frozen","status":"False","reason":"Replay","message":%q}]}}`,
	"machinedeployments": `{"status":{"conditions":[{"type":"Progressing","status":"True","reason":"Replay","message":%q}]}}`,
	"nodes":              `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":%q}]}}`,
	"pods":               `{"status":{"message":%q}}`,
}

// writesOf counts the writes among requests by the kind with which they are replayed. Rejected ones count, too, because
// the API server processes them.
func writesOf(all ...env.Totals) map[write]int {
	counts := map[write]int{}
	for _, requests := range all {
		for request, count := range requests {
			method := map[string]string{"POST": "POST", "PUT": "PATCH", "PATCH": "PATCH", "APPLY": "PATCH", "DELETE": "DELETE"}[request.Method]
			if method != "" && request.Kind() == env.Work {
				counts[write{method, replayable(method, request.Resource)}] += count
			}
		}
	}
	return counts
}

// replayable returns the resource with which a write is replayed.
func replayable(method, resource string) string {
	name, subresource, _ := strings.Cut(resource, "/")
	switch {
	case method == "POST" && resource == "pods/eviction":
		return resource
	case replayObjects[name] == nil:
		name = "machines"
	}
	if method == "PATCH" && subresource == "status" && replayStatus[name] != "" {
		return name + "/status"
	}
	return name
}

// step is a single write of a replay.
type step struct {
	write
	// object is the name of its object. A POST or DELETE has an object of its own.
	object string
}

// replaySteps returns all writes in a mixed order, which is the same in each run. The names of objects begin with
// prefix. At most targets objects of a resource are patched, in turn.
func replaySteps(counts map[write]int, prefix string, targets int) []step {
	var steps []step
	kinds := slices.SortedFunc(maps.Keys(counts), func(a, b write) int {
		return cmp.Or(strings.Compare(a.method, b.method), strings.Compare(a.resource, b.resource))
	})
	for _, kind := range kinds {
		for i := range counts[kind] {
			if kind.method == "PATCH" {
				i %= targets
			}
			name, _, _ := strings.Cut(kind.resource, "/")
			role := kind.method
			if strings.HasSuffix(kind.resource, "/eviction") {
				role = "evict"
			}
			steps = append(steps, step{kind, strings.ToLower(fmt.Sprintf("%s-%s-%s-%d", prefix, name, role, i))})
		}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	return steps
}

// existing returns the objects that must exist before the steps.
func existing(steps []step) []client.Object {
	objects := map[string]client.Object{}
	for _, s := range steps {
		if s.method == "POST" && s.resource != "pods/eviction" {
			continue
		}
		objects[s.object] = s.new()
	}
	var all []client.Object
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, objects[name])
	}
	return all
}

// new returns the object of a step.
func (s step) new() client.Object {
	name, _, _ := strings.Cut(s.resource, "/")
	return replayObjects[name](s.object)
}

// do makes the write. text makes patches of the same object differ.
func (s step) do(ctx context.Context, c client.Client, text string) error {
	object := s.new()
	name, subresource, _ := strings.Cut(s.resource, "/")
	switch {
	case subresource == "eviction":
		return c.SubResource("eviction").Create(ctx, object, &policyv1.Eviction{})
	case s.method == "POST":
		return c.Create(ctx, object)
	case s.method == "DELETE":
		return c.Delete(ctx, object, client.GracePeriodSeconds(0))
	case subresource == "status":
		return c.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, replayStatus[name], text)))
	}
	return c.Patch(ctx, object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"bench.millwright.dev/replay":%q}}}`, text)))
}

// replayAll stops the manager, and repeats the writes of all phases.
func (w *setup) replayAll(ctx context.Context, phases []*phaseResult) error {
	if err := w.stop(); err != nil {
		return err
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: replayNamespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: replayNamespace}},
	} {
		if err := w.client.Create(ctx, object); err != nil {
			return fmt.Errorf("cannot prepare the replay: %w", err)
		}
	}
	for _, p := range phases {
		var err error
		if p.replayed, err = w.replayWrites(ctx, p); err != nil {
			return fmt.Errorf("cannot replay the writes of %s: %w", p.Name, causeOf(ctx, err))
		}
	}
	return nil
}

// replayWrites repeats the writes of a phase, and returns how long they took.
func (w *setup) replayWrites(ctx context.Context, p *phaseResult) (time.Duration, error) {
	steps := replaySteps(writesOf(p.requests, p.own), p.Name, w.load.machines)
	objects := existing(steps)
	if err := inParallel(ctx, len(objects), func(ctx context.Context, i int) error { return w.client.Create(ctx, objects[i]) }); err != nil {
		return 0, err
	}
	began := time.Now()
	err := inParallel(ctx, len(steps), func(ctx context.Context, i int) error { return steps[i].do(ctx, w.client, fmt.Sprint(i)) })
	took := time.Since(began)
	w.log("a plain client needs %.1f s for the %d writes of %s", took.Seconds(), len(steps), p.Name)
	return took, err
}
