package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/env"
)

// The phases. The default ones are run in this order.
const (
	scaleUp       = "scale-up"
	rollingUpdate = "rolling-update"
	idle          = "idle"
	scaleDown     = "scale-down"
	restart       = "restart"
	notReady      = "not-ready"
	replace       = "replace"
	drained       = "drain"
)

var defaultPhases = []string{scaleUp, rollingUpdate, idle, scaleDown}

// phase is a measured part of the benchmark.
type phase struct {
	name string
	// prepare is not measured. Optional.
	prepare func(ctx context.Context) error
	// do returns when the manager has completed its work. It is measured.
	do func(ctx context.Context) error
	// starts reports that do starts the manager, which prepare stopped.
	starts bool
	// restore is not measured. Optional.
	restore func(ctx context.Context) error
	// pods returns the number of pods that the manager has evicted. Optional.
	pods func() int
	// check returns an error if the manager must not make these requests. Optional.
	check func(requests env.Totals) error
	// bounds of a pool at every moment from the beginning of do to the beginning of restore.
	bounds func(p pool) bounds
}

// kind is a phase that users can select.
type kind struct {
	// before and after report whether the pools have Machines before and after the phase.
	before, after bool
	// phase returns the phase, without its name.
	phase func(w *setup) phase
}

var kinds = map[string]kind{
	scaleUp:       {false, true, (*setup).scaleUp},
	rollingUpdate: {true, true, (*setup).rollingUpdate},
	idle:          {true, true, (*setup).idle},
	scaleDown:     {true, false, (*setup).scaleDown},
	restart:       {true, true, (*setup).restart},
	notReady:      {true, true, (*setup).notReady},
	replace:       {true, true, (*setup).replace},
	drained:       {true, false, (*setup).drain},
}

// checkPhases returns an error if the phases cannot be run in this order.
func checkPhases(names []string) error {
	known := strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
	seen, full := map[string]bool{}, false
	for _, name := range names {
		k, exists := kinds[name]
		switch {
		case !exists:
			return fmt.Errorf("--phases: unknown phase %q; choose from %s", name, known)
		case seen[name]:
			return fmt.Errorf("--phases: %s is listed twice", name)
		case k.before && !full:
			return fmt.Errorf("--phases: %s needs Machines; list %s before it", name, scaleUp)
		case !k.before && full:
			return fmt.Errorf("--phases: %s needs empty pools; list it first", name)
		}
		seen[name], full = true, k.after
	}
	if len(names) == 0 {
		return fmt.Errorf("--phases: must not be empty; choose from %s", known)
	}
	return nil
}

// measure runs the manager through all phases.
func (w *setup) measure(ctx context.Context) (*result, error) {
	found, err := w.limits(ctx)
	if err != nil {
		return nil, err
	}
	r := &result{Machines: w.load.machines, API: w.options.api, Pools: len(w.pools), Clusters: w.load.clusters, Replicas: w.load.replicas, APIServer: found, qps: w.options.manager.qps}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if err := w.track(ctx, fail); err != nil {
		return nil, err
	}
	if err := w.start(); err != nil {
		return nil, err
	}
	if err := w.begun(ctx); err != nil {
		return nil, causeOf(ctx, err)
	}
	for _, name := range w.options.phases {
		p := kinds[name].phase(w)
		p.name = name
		measured, err := w.phase(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, causeOf(ctx, err))
		}
		r.Phases = append(r.Phases, measured)
		r.MemoryMB = max(r.MemoryMB, measured.PeakMB)
	}
	if w.options.replay {
		if err := w.replayAll(ctx, r.Phases); err != nil {
			return nil, err
		}
	}
	for _, p := range r.Phases {
		p.complete(w.load.machines, found)
	}
	return r, nil
}

// causeOf returns why ctx was canceled, which is more useful than the error of a request that was canceled with it.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// begun waits until the manager has observed the deployments and is idle.
func (w *setup) begun(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout, errors.New("the manager did not observe the MachineDeployments in time"))
	defer cancel()
	ctx, stop := w.manager.alive(ctx)
	defer stop()
	if err := errors.Join(w.settled(ctx, none), w.api.ready(w, ctx)); err != nil {
		return causeOf(ctx, err)
	}
	_, err := w.quiet(ctx, env.Work, env.Event)
	return causeOf(ctx, err)
}

// updateBounds returns how many Machines a rolling update of a pool may create in addition, and how many may be
// unavailable.
func (w *setup) updateBounds(p pool) (surge, unavailable int) {
	deployment := w.deployment(p)
	deployment.Spec.Replicas = int32(p.machines)
	up, down := rollout.Bounds(deployment)
	return int(up), int(down)
}

func (w *setup) scaleUp() phase {
	return phase{
		do:     func(ctx context.Context) error { return w.scale(ctx, all) },
		bounds: func(p pool) bounds { return bounds{most: p.machines} },
	}
}

func (w *setup) rollingUpdate() phase {
	return phase{
		do: func(ctx context.Context) error {
			if err := w.patchAll(ctx, func(pool) string { return w.api.replacement }); err != nil {
				return err
			}
			// Until the core of Cluster API has compared the Machines with the template, the status is still complete.
			if err := w.tracker.await(ctx, func() bool { return w.tracker.gone() >= w.sum(all) }); err != nil {
				return err
			}
			return w.settled(ctx, all)
		},
		bounds: func(p pool) bounds {
			surge, unavailable := w.updateBounds(p)
			return bounds{most: p.machines + surge, least: p.machines - unavailable, leaving: p.machines}
		},
	}
}

func (w *setup) idle() phase {
	return phase{
		do:     func(ctx context.Context) error { return pause(ctx, w.load.idle) },
		bounds: func(p pool) bounds { return bounds{most: p.machines, least: p.machines} },
	}
}

func (w *setup) scaleDown() phase {
	return phase{
		do:     func(ctx context.Context) error { return w.scale(ctx, none) },
		bounds: func(p pool) bounds { return bounds{most: p.machines, leaving: p.machines} },
	}
}

// scale sets the replicas of all pools and waits until they have their Machines.
func (w *setup) scale(ctx context.Context, machines func(pool) int) error {
	return w.change(ctx, func(p pool) string { return replicas(machines(p)) }, machines)
}

// replicas returns a patch of the replicas of a deployment.
func replicas(n int) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, n) }

// patch patches the deployment of a pool.
func (w *setup) patch(ctx context.Context, p pool, patch string) error {
	deployment := w.api.deployment()
	deployment.SetNamespace(p.Namespace)
	deployment.SetName(p.Name)
	return w.client.Patch(ctx, deployment, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// change patches all deployments and waits until they have their Machines.
func (w *setup) change(ctx context.Context, patch func(pool) string, machines func(pool) int) error {
	if err := w.patchAll(ctx, patch); err != nil {
		return err
	}
	return w.settled(ctx, machines)
}

// patchAll patches all deployments.
func (w *setup) patchAll(ctx context.Context, patch func(pool) string) error {
	return inParallel(ctx, len(w.pools), func(ctx context.Context, i int) error {
		return w.patch(ctx, w.pools[i], patch(w.pools[i]))
	})
}

// settleInterval is the interval between two checks of the remaining objects, once the deployments report that they
// are complete.
const settleInterval = 50 * time.Millisecond

// settled waits until each deployment has the given number of Machines, all of them available and up to date, and no
// other Machine or Node exists. While the manager works, settled only watches.
func (w *setup) settled(ctx context.Context, machines func(pool) int) error {
	if err := w.awaitStatus(ctx, machines); err != nil {
		return fmt.Errorf("the status of the MachineDeployments is not complete: %w", err)
	}
	err := w.tracker.await(ctx, func() bool {
		return !slices.ContainsFunc(w.pools, func(p pool) bool {
			n := machines(p)
			return w.tracker.census(p) != census{existing: n, available: n}
		})
	})
	if err != nil {
		return err
	}
	return await(ctx, settleInterval, func() (bool, error) {
		nodes, err := w.count(ctx, schema.GroupVersionKind{Version: "v1", Kind: "Node"})
		return nodes == int64(w.sum(machines)+w.load.otherNodes()), err
	})
}

// count returns the number of objects without fetching them.
func (w *setup) count(ctx context.Context, kind schema.GroupVersionKind) (int64, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := w.client.List(ctx, list, client.Limit(1)); err != nil {
		return 0, err
	}
	count := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		count += *list.RemainingItemCount
	}
	return count, nil
}

// awaitStatus watches the deployments until the status of all of them is complete.
func (w *setup) awaitStatus(ctx context.Context, machines func(pool) int) error {
	for {
		done, err := w.watchStatus(ctx, machines)
		if done || err != nil {
			return err
		}
		// The API server closes watches from time to time.
		w.log("watching the deployments again")
	}
}

func (w *setup) watchStatus(ctx context.Context, machines func(pool) int) (bool, error) {
	deployments, err := w.client.Watch(ctx, w.api.deployments())
	if err != nil {
		return false, err
	}
	waiting := map[client.ObjectKey]int{}
	for _, p := range w.pools {
		waiting[p.ObjectKey] = machines(p)
	}
	done := map[client.ObjectKey]bool{}
	_, err = watchtools.UntilWithoutRetry(ctx, deployments, func(event watch.Event) (bool, error) {
		deployment, ok := event.Object.(client.Object)
		if !ok {
			return false, nil
		}
		key := client.ObjectKeyFromObject(deployment)
		if n, waited := waiting[key]; waited && w.api.isDone(deployment, int32(n)) {
			done[key] = true
		} else {
			delete(done, key)
		}
		return len(done) == len(waiting), nil
	})
	if err != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return err == nil, nil
}

// sample contains the values of all counters.
type sample struct {
	at                    time.Time
	totals                env.Totals
	manager, controlPlane usage
}

func (w *setup) sample(ctx context.Context) (sample, error) {
	totals, err := w.totals(ctx)
	if err != nil {
		return sample{}, err
	}
	manager, err := w.managerUsage()
	if err != nil {
		return sample{}, err
	}
	controlPlane, err := usageOf(func(s procfs.ProcStat) bool {
		return s.PPID == os.Getpid() && s.Comm != coreProgram && (w.manager == nil || s.PGRP != w.manager.PID())
	})
	return sample{at: time.Now(), totals: totals, manager: manager, controlPlane: controlPlane}, err
}

// totals returns the numbers of requests of the manager and, if they are not counted separately, of all other clients.
func (w *setup) totals(ctx context.Context) (env.Totals, error) {
	if w.counted != nil {
		return w.counted.counts(), nil
	}
	return env.Scrape(ctx, w.server)
}

// managerUsage returns the usage of the manager, which is zero if none is running.
func (w *setup) managerUsage() (usage, error) {
	if w.manager == nil {
		return usage{}, nil
	}
	return usageOf(func(s procfs.ProcStat) bool { return s.PGRP == w.manager.PID() })
}

// tail continues to count requests and CPU time for some time after the work of a phase is complete. With Cluster API, it
// waits until the manager has processed the last changes of the core.
func (w *setup) tail(ctx context.Context, p phase) error {
	switch {
	case p.name == idle:
		return nil
	case w.counted != nil:
		_, err := w.quiet(ctx, env.Work)
		return err
	default:
		return pause(ctx, time.Second)
	}
}

// phase measures a phase. Its measured time stops when the work is complete. Then phase waits for the events, which
// managers deliberately write slowly.
func (w *setup) phase(ctx context.Context, p phase) (*phaseResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout, fmt.Errorf("not complete within %s", w.timeout))
	defer cancel()
	if p.prepare != nil {
		if err := p.prepare(ctx); err != nil {
			return nil, causeOf(ctx, err)
		}
		if _, err := w.quiet(ctx, env.Work); err != nil {
			return nil, err
		}
	}
	if err := w.tracker.expect(p.name, w.boundsOf(p)); err != nil {
		return nil, err
	}
	if !p.starts {
		var stop context.CancelFunc
		ctx, stop = w.manager.alive(ctx)
		defer stop()
	}
	measured, err := w.measurePhase(ctx, p)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	_ = w.tracker.expect("", nil) // without bounds, it succeeds
	if p.restore != nil {
		if err := p.restore(ctx); err != nil {
			return nil, causeOf(ctx, err)
		}
	}
	return measured, w.checkInstances()
}

func (w *setup) boundsOf(p phase) map[client.ObjectKey]bounds {
	all := map[client.ObjectKey]bounds{}
	for _, of := range w.pools {
		all[of.ObjectKey] = p.bounds(of)
	}
	return all
}

// measurePhase measures what the manager does while p.do runs, and until it is quiet.
func (w *setup) measurePhase(ctx context.Context, p phase) (*phaseResult, error) {
	endProfiles := w.beginProfiles(ctx, p)
	w.own.reset()
	w.acted = 0
	before, err := w.sample(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := p.do(ctx); err != nil {
		return nil, err
	}
	took := time.Since(began)
	if err := w.tail(ctx, p); err != nil {
		return nil, err
	}
	after, err := w.sample(ctx)
	if err != nil {
		return nil, err
	}
	if err := endProfiles(); err != nil {
		return nil, err
	}
	own := w.own.counts()
	last, err := w.quiet(ctx, env.Event)
	if err != nil {
		return nil, err
	}
	w.log("%s took %.1f s", p.name, took.Seconds())
	measured := w.subtract(p.name, took, before, after, own, last)
	if p.pods != nil {
		measured.Pods = p.pods()
		measured.excludeBudgets()
	}
	if p.check != nil {
		return measured, p.check(measured.requests)
	}
	return measured, nil
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
		if last, err = w.totals(ctx); err != nil {
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
func (w *setup) subtract(name string, took time.Duration, before, after sample, own, last env.Totals) *phaseResult {
	r := &phaseResult{
		Name: name, took: took, requests: env.Totals{}, own: own,
		ActedSeconds: round(w.acted.Seconds(), 2), MemoryMB: megabytes(after.manager.resident), PeakMB: megabytes(after.manager.peak),
		Events:          last.Since(before.totals).Count(env.Event),
		CPU:             (after.manager.cpu - before.manager.cpu).Seconds(),
		ControlPlaneCPU: (after.controlPlane.cpu - before.controlPlane.cpu).Seconds(),
	}
	for request, count := range after.totals.Since(before.totals).Since(own) {
		if request.Kind() == env.Work && count > 0 {
			r.requests[request] = count
		}
	}
	return r
}
