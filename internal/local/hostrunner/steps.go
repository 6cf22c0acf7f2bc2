package hostrunner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/internal/local/process"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// actions start and terminate the process.
var actions = []flow.Step[*worker]{
	step("Recover", (*worker).recover),
	step("ObserveEnd", (*worker).observeEnd),
	step("Refuse", (*worker).refuse),
	step("Start", (*worker).start),
	step("End", (*worker).end),
	step("RotateLog", (*worker).rotateLog),
	step("RenewTokens", (*worker).renewTokens),
}

// reports write the status, and clean up after the Pod.
var reports = []flow.Step[*worker]{
	step("Report", (*worker).report),
	step("CleanUp", (*worker).cleanUp),
}

func step(name string, do func(*worker, context.Context) flow.Result) flow.Step[*worker] {
	return flow.Step[*worker]{Name: name, Run: func(ctx context.Context, w *worker) flow.Result { return do(w, ctx) }}
}

// Reasons of waiting containers and of events.
const (
	waitingCreating   = "ContainerCreating"
	waitingStartError = "CreateContainerError"

	eventVolumes = "FailedMount"
	eventStart   = "Failed"
	eventStarted = "Started"
	eventKilling = "Killing"
)

// defaultGrace is the grace period of a Pod without one.
const defaultGrace = 30 * time.Second

// recover finds the process of an earlier host runner.
func (w *worker) recover(context.Context) flow.Result {
	if w.recovered {
		return flow.Continue()
	}
	found, err := process.Open(w.dir.process())
	switch {
	case errors.Is(err, process.ErrNeverStarted):
	case err != nil:
		return flow.Fail(err)
	default:
		w.process = found
		w.renew = w.Clock.Now() // the expiry of the last token is not known
		w.log().Info("found the process of an earlier host runner", "pid", found.PID())
	}
	w.recovered = true
	return flow.Continue()
}

func (w *worker) observeEnd(context.Context) flow.Result {
	if w.ending != nil {
		return flow.Continue()
	}
	if w.process == nil {
		if w.seen == viewLive && w.pod.Status.Phase == corev1.PodRunning {
			w.ending = vanished(w.pod, w.Clock.Now())
		}
		return flow.Continue()
	}
	select {
	case <-w.process.Ended():
	default:
		return flow.Continue()
	}
	exit, err := w.process.Exit()
	if err != nil {
		// A descendant may still run, so the Pod has not terminated.
		w.process, w.recovered = nil, false
		return flow.Fail(err)
	}
	if exit.Time.IsZero() {
		exit.Time = w.Clock.Now()
	}
	w.ending = conclude(exit, w.process.Began(), w.process.Killed(), readMessage(w.dir))
	if w.stop != nil && w.stop.host {
		w.ending.phase, w.ending.reason = corev1.PodFailed, ReasonHostStopped
		w.ending.message = "the host runner was stopped, and its processes with it"
	}
	w.log().Info("the process exited", "phase", w.ending.phase, "code", w.ending.container.ExitCode)
	return flow.Continue()
}

func (w *worker) startable() bool {
	return w.seen == viewLive && w.process == nil && w.ending == nil && w.shouldRun()
}

// refuse fails Pods that do not belong to a virtual machine, or that a host does not support.
func (w *worker) refuse(ctx context.Context) flow.Result {
	if !w.startable() || w.admitted {
		return flow.Continue()
	}
	err := w.admitOwner(ctx, w.pod)
	if err != nil && !errors.Is(err, errForeign) {
		return w.hold(waitingCreating, eventStart, err)
	}
	if err == nil {
		err = admit(w.pod)
	}
	w.admitted = err == nil
	if err != nil {
		w.ending = &ending{phase: corev1.PodFailed, reason: ReasonUnsupported, message: text(err)}
		w.events.Event(w.pod, corev1.EventTypeWarning, ReasonUnsupported, err.Error())
	}
	return flow.Continue()
}

// start starts the process once its volumes are ready.
func (w *worker) start(ctx context.Context) flow.Result {
	if !w.startable() {
		return flow.Continue()
	}
	if err := w.save(); err != nil {
		return w.hold(waitingStartError, eventStart, err)
	}
	if err := w.prepareVolumes(ctx); err != nil {
		return w.hold(waitingCreating, eventVolumes, err)
	}
	env, err := environment(w.pod, w.dir.root(), w.Config)
	if err != nil {
		return w.hold(waitingStartError, eventStart, err)
	}
	command := process.Command{
		Path: w.Program, Args: w.pod.Spec.Containers[0].Command[1:], Dir: string(w.dir), Env: env, Log: w.dir.log(),
	}
	started, err := process.Start(w.dir.process(), command, w.Clock.Now())
	if err != nil {
		w.recovered = false // a process may have run
		return w.hold(waitingStartError, eventStart, err)
	}
	w.process, w.waiting = started, nil
	w.events.Event(w.pod, corev1.EventTypeNormal, eventStarted, fmt.Sprintf("started process %d", started.PID()))
	w.log().Info("started the process", "pid", started.PID())
	return flow.Continue()
}

// hold lets the Pod wait, and reports why in its status. What it waits for often cannot be watched, so the pass
// is repeated. The first failure is often that the API server does not know yet that the Pod is on this host,
// so events begin with the second one.
func (w *worker) hold(reason, event string, err error) flow.Result {
	w.waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: text(err)}
	if w.failures > 0 {
		w.announce(event, err)
	}
	return flow.Fail(err)
}

// text returns the text of an error for the status of a Pod. It includes user input.
func text(err error) string { return messages.Shorten(err.Error(), maxMessage) }

// announce creates an event for an error, unless the last one was the same.
func (w *worker) announce(event string, err error) {
	if w.announced != err.Error() {
		w.announced = err.Error()
		w.events.Event(w.pod, corev1.EventTypeWarning, event, err.Error())
	}
}

// save writes the Pod into its directory: a later host runner may find it deleted.
func (w *worker) save() error {
	content, err := json.Marshal(w.pod)
	if err != nil {
		return err
	}
	return directory.WriteFile(w.dir.manifest(), content)
}

// end terminates a process that should not run: with SIGTERM, and after its grace period with SIGKILL.
func (w *worker) end(context.Context) flow.Result {
	if !w.running() || w.shouldRun() {
		return flow.Continue()
	}
	now := w.Clock.Now()
	deadline := w.deadline(now)
	if w.stop == nil {
		w.stop = &stop{host: !w.dismissed(), began: now, deadline: deadline}
		w.process.Terminate()
		w.log().Info("terminating the process", "deadline", deadline)
		if w.seen == viewLive {
			w.events.Event(w.pod, corev1.EventTypeNormal, eventKilling, "terminating the process")
		}
	} else if w.stopped() && !w.stop.host && !w.stop.urged {
		w.stop.urged = true
		w.process.Terminate() // a hypervisor that waits to migrate would wait in vain
	}
	if deadline.Before(w.stop.deadline) {
		w.stop.deadline = deadline
	}
	if rest := w.stop.deadline.Sub(now); rest > 0 {
		return flow.Wait(rest, "the process to exit")
	}
	w.process.Kill()
	return flow.Wait(0, "the killed process to exit")
}

// dismissed reports whether the process must terminate because of its Pod.
func (w *worker) dismissed() bool {
	switch w.seen {
	case viewGone:
		return true
	case viewLive:
		return !w.pod.DeletionTimestamp.IsZero() || terminal(w.pod.Status.Phase)
	default:
		return false
	}
}

// deadline returns when a process that is, or begins, terminating is killed.
func (w *worker) deadline(now time.Time) time.Time {
	grace := defaultGrace
	if w.pod != nil && w.pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = time.Duration(*w.pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	deadline := now.Add(grace)
	if w.seen == viewLive && w.pod.DeletionTimestamp != nil {
		// This is the time of the request plus its grace period.
		deadline = w.pod.DeletionTimestamp.Time
		began := now
		if w.stop != nil {
			began = w.stop.began
		}
		if first := began.Add(time.Second); deadline.Before(first) {
			deadline = first // SIGTERM comes first
		}
	}
	if latest := w.stopSeen.Add(StopGrace); w.stopped() && latest.Before(deadline) {
		deadline = latest
	}
	return deadline
}

func (w *worker) rotateLog(context.Context) flow.Result {
	if !w.running() {
		return flow.Continue()
	}
	if err := rotate(w.dir.log(), logLimit); err != nil {
		w.log().Error(err, "rotating the log")
	}
	return flow.Continue()
}

func (w *worker) renewTokens(ctx context.Context) flow.Result {
	if !w.running() {
		return flow.Continue()
	}
	wait := logInterval
	if w.seen == viewLive && !w.renew.IsZero() {
		if !w.Clock.Now().Before(w.renew) {
			if err := w.issueTokens(ctx); err != nil {
				w.announce(eventVolumes, err)
				return flow.Fail(err)
			}
			w.announced = ""
		}
		if !w.renew.IsZero() {
			wait = max(min(wait, w.renew.Sub(w.Clock.Now())), time.Millisecond)
		}
	}
	return flow.Wait(wait, "the next check of tokens and log")
}

func (w *worker) report(ctx context.Context) flow.Result {
	if w.seen != viewLive || w.idle() {
		return flow.Continue()
	}
	known := facts{now: w.Clock.Now(), waiting: w.waiting, end: w.ending}
	if w.process != nil {
		known.began = w.process.Began()
	}
	patch, err := statusPatch(w.pod, statusOf(w.pod, known))
	if err != nil || patch == nil {
		return flow.Fail(err)
	}
	patched, err := w.client.CoreV1().Pods(w.pod.Namespace).Patch(
		ctx, w.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierror.Gone(err) {
		return flow.Wait(0, "the watch to report that the Pod is gone")
	}
	if apierror.Conflict(err) {
		return conflict()
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("writing the status: %w", err))
	}
	w.learn(patched)
	w.pod = patched
	return flow.Continue()
}

// conflict waits after a conflict about a Pod. If it is now another Pod of the same name, the watch reports
// that. An API server also returns conflicts when others write to the Pod all the time; then the watch reports
// nothing.
func conflict() flow.Result {
	return flow.Wait(retryInterval, "the watch to report another Pod of this name, or the next attempt")
}

// idle reports whether a Pod was deleted, or the host stopped, before anything was done for it.
func (w *worker) idle() bool {
	return w.process == nil && w.ending == nil && !w.shouldRun()
}

// cleanUp removes the directory of a Pod that is being deleted, and completes the deletion.
func (w *worker) cleanUp(ctx context.Context) flow.Result {
	leaving := w.seen == viewGone || w.seen == viewLive && w.pod.DeletionTimestamp != nil
	if !leaving || !w.recovered || w.running() {
		return flow.Continue()
	}
	if err := w.dir.remove(); err != nil {
		return flow.Fail(err)
	}
	if w.seen == viewGone {
		w.finished = true
		return flow.Continue()
	}
	err := w.client.CoreV1().Pods(w.pod.Namespace).Delete(ctx, w.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0),
		Preconditions:      metav1.NewUIDPreconditions(string(w.pod.UID)),
	})
	if apierror.Conflict(err) {
		return conflict()
	}
	return flow.Fail(apierror.IgnoreGone(err))
}
