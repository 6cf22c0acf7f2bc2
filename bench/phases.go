package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
)

// The phases, in order.
const (
	scaleUp       = "scale-up"
	rollingUpdate = "rolling-update"
	idle          = "idle"
	scaleDown     = "scale-down"
)

// measure runs the manager through all phases.
func (w *setup) measure(ctx context.Context) (*result, error) {
	found, err := w.limits(ctx)
	if err != nil {
		return nil, err
	}
	r := &result{Machines: w.load.machines, APIServer: found, qps: w.options.manager.qps}
	if w.manager, err = startManager(w.options.manager, w.dir, w.cp.Kubeconfig(), namespace); err != nil {
		return nil, err
	}
	ctx, cancel := w.manager.alive(ctx)
	defer cancel()
	if err := w.begun(ctx); err != nil {
		return nil, err
	}
	for _, phase := range w.phases() {
		measured, err := w.phase(ctx, phase)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", phase.name, err)
		}
		measured.complete(w.load.machines, found)
		r.Phases = append(r.Phases, measured)
	}
	used, err := w.managerUsage()
	r.MemoryMB = round(float64(used.peak)/1e6, 1)
	return r, err
}

// begun waits until the manager has observed the deployment and is idle.
func (w *setup) begun(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout, errors.New("the manager did not observe the MachineDeployment in time"))
	defer cancel()
	if err := w.settled(ctx, 0); err != nil {
		return err
	}
	_, err := w.quiet(ctx, env.Work, env.Event)
	return err
}

type phase struct {
	name string
	// do returns when the manager has completed its work.
	do func(ctx context.Context) error
}

func (w *setup) phases() []phase {
	n := int32(w.load.machines)
	return []phase{
		{scaleUp, func(ctx context.Context) error { return w.change(ctx, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n), n) }},
		{rollingUpdate, func(ctx context.Context) error {
			return w.change(ctx, fmt.Sprintf(`{"spec":{"template":{"spec":{"class":{"name":%q}}}}}`, secondClass), n)
		}},
		{idle, func(ctx context.Context) error { return pause(ctx, w.load.idle) }},
		{scaleDown, func(ctx context.Context) error { return w.change(ctx, `{"spec":{"replicas":0}}`, 0) }},
	}
}

// change patches the deployment and waits until it has its Machines.
func (w *setup) change(ctx context.Context, patch string, machines int32) error {
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pool}}
	if err := w.client.Patch(ctx, deployment, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return err
	}
	w.countOwn("PATCH", "machinedeployments")
	return w.settled(ctx, machines)
}

// countOwn counts a request of the benchmark itself.
func (w *setup) countOwn(method, resource string) {
	group := v1alpha1.SchemeGroupVersion.Group
	if resource == "nodes" {
		group = ""
	}
	w.own[env.RequestKey{Method: method, Group: group, Resource: resource, Code: http.StatusOK}]++
}

// settleInterval is the interval between two checks of the remaining objects, once the deployment reports that it
// is complete.
const settleInterval = 50 * time.Millisecond

// settled waits until the deployment has the given number of Machines, all of them available and up to date, and no
// other Machine or Node exists. While the manager works, settled only watches.
func (w *setup) settled(ctx context.Context, machines int32) error {
	if err := w.awaitStatus(ctx, machines); err != nil {
		return fmt.Errorf("the MachineDeployment's status is not complete: %w", err)
	}
	return await(ctx, settleInterval, func() (bool, error) {
		for _, kind := range []struct {
			schema.GroupVersionKind
			resource string
			want     int
		}{
			{v1alpha1.SchemeGroupVersion.WithKind("Machine"), "machines", int(machines)},
			{schema.GroupVersionKind{Version: "v1", Kind: "Node"}, "nodes", int(machines) + w.load.otherNodes()},
		} {
			found, err := w.count(ctx, kind.GroupVersionKind, kind.resource)
			if err != nil || found != int64(kind.want) {
				return false, err
			}
		}
		return true, nil
	})
}

// count returns the number of objects without fetching them.
func (w *setup) count(ctx context.Context, kind schema.GroupVersionKind, resource string) (int64, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := w.client.List(ctx, list, client.Limit(1)); err != nil {
		return 0, err
	}
	w.countOwn("LIST", resource)
	count := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		count += *list.RemainingItemCount
	}
	return count, nil
}

// awaitStatus watches the deployment until its status is complete.
func (w *setup) awaitStatus(ctx context.Context, machines int32) error {
	for {
		done, err := w.watchStatus(ctx, machines)
		if done || err != nil {
			return err
		}
		// The API server closes watches from time to time.
		w.log("watching the deployment again")
	}
}

func (w *setup) watchStatus(ctx context.Context, machines int32) (bool, error) {
	deployments, err := w.client.Watch(ctx, &v1alpha1.MachineDeploymentList{}, client.InNamespace(namespace))
	if err != nil {
		return false, err
	}
	_, err = watchtools.UntilWithoutRetry(ctx, deployments, func(event watch.Event) (bool, error) {
		deployment, ok := event.Object.(*v1alpha1.MachineDeployment)
		return ok && isDone(deployment, machines), nil
	})
	if err != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return err == nil, nil
}

func isDone(d *v1alpha1.MachineDeployment, machines int32) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.Replicas == machines && s.UpdatedReplicas == machines && s.AvailableReplicas == machines
}

// sample contains the values of all counters.
type sample struct {
	at                    time.Time
	totals                env.Totals
	manager, controlPlane usage
}

func (w *setup) sample(ctx context.Context) (sample, error) {
	totals, err := env.Scrape(ctx, w.server)
	if err != nil {
		return sample{}, err
	}
	manager, err := w.managerUsage()
	if err != nil {
		return sample{}, err
	}
	controlPlane, err := usageOf(func(s procfs.ProcStat) bool { return s.PPID == os.Getpid() && s.PGRP != w.manager.PID() })
	return sample{at: time.Now(), totals: totals, manager: manager, controlPlane: controlPlane}, err
}

func (w *setup) managerUsage() (usage, error) {
	return usageOf(func(s procfs.ProcStat) bool { return s.PGRP == w.manager.PID() })
}

// tail is the time for which requests and CPU time are counted after the work of a phase is complete.
const tail = time.Second

// phase measures a phase. Its measured time stops when the work is complete. Then phase waits for the events, which
// managers deliberately write slowly.
func (w *setup) phase(ctx context.Context, p phase) (*phaseResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout, fmt.Errorf("not complete within %s", w.timeout))
	defer cancel()
	endProfiles := w.beginProfiles(ctx, p.name)
	clear(w.own)
	before, err := w.sample(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := p.do(ctx); err != nil {
		return nil, err
	}
	took := time.Since(began)
	if p.name != idle {
		if err := pause(ctx, tail); err != nil {
			return nil, err
		}
	}
	after, err := w.sample(ctx)
	if err != nil {
		return nil, err
	}
	if err := endProfiles(); err != nil {
		return nil, err
	}
	last, err := w.quiet(ctx, env.Event)
	if err != nil {
		return nil, err
	}
	w.log("%s took %.1f s", p.name, took.Seconds())
	return w.subtract(p.name, took, before, after, last), nil
}

const (
	// quietFor is the time without counted requests after which the manager is considered quiet.
	quietFor   = 2 * time.Second
	quietLimit = 5 * time.Minute
)

// quiet waits until no requests of the given kinds are made, at most for quietLimit, because some managers never
// become quiet. It returns the counts afterwards.
func (w *setup) quiet(ctx context.Context, kinds ...env.Kind) (env.Totals, error) {
	var last env.Totals
	count, end := -1, time.Now().Add(quietLimit)
	err := await(ctx, w.quietFor, func() (bool, error) {
		var err error
		if last, err = env.Scrape(ctx, w.server); err != nil {
			return false, err
		}
		sum := last.Count(kinds...)
		same := sum == count
		count = sum
		return same || time.Now().After(end), nil
	})
	return last, err
}

// subtract returns the difference of two samples.
func (w *setup) subtract(name string, took time.Duration, before, after sample, last env.Totals) *phaseResult {
	r := &phaseResult{
		Name: name, took: took, requests: map[env.RequestKey]int{},
		Events:          last.Since(before.totals).Count(env.Event),
		CPU:             (after.manager.cpu - before.manager.cpu).Seconds(),
		ControlPlaneCPU: (after.controlPlane.cpu - before.controlPlane.cpu).Seconds(),
	}
	for request, count := range after.totals.Since(before.totals).Since(w.own) {
		if request.Kind() == env.Work && count > 0 {
			r.requests[request] = count
		}
	}
	return r
}
