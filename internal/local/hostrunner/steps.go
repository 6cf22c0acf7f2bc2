package hostrunner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/local/folder"
	"github.com/millwright-dev/millwright/internal/local/process"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// actions bring the process where the Pod wants it.
var actions = []flow.Step[*worker]{
	step("Recover", (*worker).recover),
	step("ObserveEnd", (*worker).observeEnd),
	step("Refuse", (*worker).refuse),
	step("Start", (*worker).start),
	step("End", (*worker).end),
	step("RotateLog", (*worker).rotateLog),
	step("RenewTokens", (*worker).renewTokens),
}

// reports tell the API, and clean up after the Pod.
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

// defaultGrace is a Pod's grace period where nothing is known of it.
const defaultGrace = 30 * time.Second

// recover finds the process that an earlier host runner started.
func (w *worker) recover(context.Context) flow.Result {
	if w.recovered {
		return flow.Continue()
	}
	found, err := process.Open(w.folder.process())
	switch {
	case errors.Is(err, process.ErrNeverStarted):
	case err != nil:
		return flow.Fail(err)
	default:
		w.process = found
		w.renew = w.Clock.Now() // when the present token ends is not written down
		w.log().Info("found the process of an earlier host runner", "pid", found.PID())
	}
	w.recovered = true
	return flow.Continue()
}

// observeEnd takes note of the end of the process.
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
		// Something of it may run, so that the Pod must not count as ended.
		w.process, w.recovered = nil, false
		return flow.Fail(err)
	}
	if exit.Time.IsZero() {
		exit.Time = w.Clock.Now()
	}
	w.ending = conclude(exit, w.process.Began(), w.process.Killed(), readMessage(w.folder))
	if w.stop != nil && w.stop.host {
		w.ending.phase, w.ending.reason = corev1.PodFailed, ReasonHostStopped
		w.ending.message = "the host runner was stopped, and its processes with it"
	}
	w.log().Info("the process ended", "phase", w.ending.phase, "code", w.ending.container.ExitCode)
	return flow.Continue()
}

// startable reports whether there is a process to be started.
func (w *worker) startable() bool {
	return w.seen == viewLive && w.process == nil && w.ending == nil && w.wanted()
}

// refuse ends Pods that cannot be run here.
func (w *worker) refuse(context.Context) flow.Result {
	if !w.startable() {
		return flow.Continue()
	}
	if err := admit(w.pod); err != nil {
		w.ending = &ending{phase: corev1.PodFailed, reason: ReasonUnsupported, message: err.Error()}
		w.events.Event(w.pod, corev1.EventTypeWarning, ReasonUnsupported, err.Error())
	}
	return flow.Continue()
}

// start starts the process once all that it needs is there.
func (w *worker) start(ctx context.Context) flow.Result {
	if !w.startable() {
		return flow.Continue()
	}
	if err := w.save(); err != nil {
		return w.hold(waitingStartError, eventStart, err)
	}
	renew, err := w.volumes.prepare(ctx, w.pod, w.folder)
	if err != nil {
		return w.hold(waitingCreating, eventVolumes, err)
	}
	env, err := environment(w.pod, w.folder.root(), w.Path)
	if err != nil {
		return w.hold(waitingStartError, eventStart, err)
	}
	command := process.Command{
		Path: w.Program, Args: []string{"hypervisor"}, Dir: string(w.folder), Env: env, Log: w.folder.log(),
	}
	started, err := process.Start(w.folder.process(), command, w.Clock.Now())
	if err != nil {
		w.recovered = false // it may be that something did run
		return w.hold(waitingStartError, eventStart, err)
	}
	w.process, w.renew, w.waiting = started, renew, nil
	w.events.Event(w.pod, corev1.EventTypeNormal, eventStarted, fmt.Sprintf("started process %d", started.PID()))
	w.log().Info("started the process", "pid", started.PID())
	return flow.Continue()
}

// holdCause is what keeps a process from being started.
type holdCause struct {
	event  string
	volume string              // the volume that is not ready, if one is not
	api    metav1.StatusReason // why the API server refused a request, if it did
}

func causeOf(event string, err error) holdCause {
	cause := holdCause{event: event, api: apierrors.ReasonForError(err)}
	var notReady *notReadyError
	if errors.As(err, &notReady) {
		cause.volume = notReady.volume
	}
	return cause
}

// hold lets the Pod wait, and reports why in its status. What it waits for can often not be
// watched, so it is tried again. An event is for a cause that is found twice in a row: the
// first failure is often that the API server does not know yet that the Pod is ours.
func (w *worker) hold(reason, event string, err error) flow.Result {
	cause := causeOf(event, err)
	again := w.waiting != nil && w.held == cause
	w.waiting, w.held = &corev1.ContainerStateWaiting{Reason: reason, Message: err.Error()}, cause
	if again && w.announced != cause {
		w.announced = cause
		w.events.Event(w.pod, corev1.EventTypeWarning, event, err.Error())
	}
	return flow.Fail(err)
}

// save makes the Pod's folder, and keeps the Pod for a host runner that comes after us
// and may find it deleted.
func (w *worker) save() error {
	content, err := json.Marshal(w.pod)
	if err != nil {
		return err
	}
	return folder.WriteFile(w.folder.manifest(), content)
}

// end ends a process that is not wanted: asks it, and kills it after its grace period.
func (w *worker) end(context.Context) flow.Result {
	if !w.running() || w.wanted() {
		return flow.Continue()
	}
	now := w.Clock.Now()
	deadline := w.deadline(now)
	if w.stop == nil {
		w.stop = &stop{host: !w.dismissed(), deadline: deadline}
		w.process.Terminate()
		w.log().Info("ending the process", "deadline", deadline)
		if w.seen == viewLive {
			w.events.Event(w.pod, corev1.EventTypeNormal, eventKilling, "ending the process")
		}
	}
	if deadline.Before(w.stop.deadline) {
		w.stop.deadline = deadline
	}
	if rest := w.stop.deadline.Sub(now); rest > 0 {
		return flow.Wait(rest, "the process to end")
	}
	w.process.Kill()
	return flow.Wait(0, "the process to die")
}

// dismissed reports whether the Pod is to end whatever the host does.
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

// deadline is when a process that is to end now has to be gone.
func (w *worker) deadline(now time.Time) time.Time {
	grace := defaultGrace
	if w.pod != nil && w.pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = time.Duration(*w.pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	deadline := now.Add(grace)
	if w.seen == viewLive && w.pod.DeletionTimestamp != nil {
		// This is the time of the request and the grace period that it asked for.
		deadline = w.pod.DeletionTimestamp.Time
		if first := now.Add(time.Second); w.stop == nil && deadline.Before(first) {
			deadline = first // everybody is asked before being killed
		}
	}
	if latest := w.stopSeen.Add(StopGrace); w.stopped() && latest.Before(deadline) {
		deadline = latest
	}
	return deadline
}

// rotateLog keeps the log of a running process small.
func (w *worker) rotateLog(context.Context) flow.Result {
	if !w.running() {
		return flow.Continue()
	}
	if err := rotate(w.folder.log(), w.logLimit); err != nil {
		w.log().Error(err, "the log grows on")
	}
	return flow.Continue()
}

// renewTokens renews the tokens of a running process in time.
func (w *worker) renewTokens(ctx context.Context) flow.Result {
	if !w.running() {
		return flow.Continue()
	}
	wait := w.logInterval
	if w.seen == viewLive && !w.renew.IsZero() {
		if !w.Clock.Now().Before(w.renew) {
			due, err := w.volumes.renewTokens(ctx, w.pod, w.folder)
			if err != nil {
				return flow.Fail(err)
			}
			w.renew = due
		}
		if !w.renew.IsZero() {
			wait = max(min(wait, w.renew.Sub(w.Clock.Now())), time.Millisecond)
		}
	}
	return flow.Wait(wait, "tokens and logs to grow old")
}

// report writes the Pod's status.
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
		ctx, w.pod.Name, patchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return flow.Wait(0, "the watch to tell that the Pod is gone")
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("writing the status: %w", err))
	}
	w.learn(patched)
	w.pod = patched
	return flow.Continue()
}

// idle reports whether there is nothing to say of a Pod: it was deleted, or the host
// stopped, before anything was done for it.
func (w *worker) idle() bool {
	return w.process == nil && w.ending == nil && !w.wanted()
}

// cleanUp removes what is left of a Pod that is to go, and lets it go.
func (w *worker) cleanUp(ctx context.Context) flow.Result {
	leaving := w.seen == viewGone || w.seen == viewLive && w.pod.DeletionTimestamp != nil
	if !leaving || !w.recovered || w.running() {
		return flow.Continue()
	}
	if err := os.RemoveAll(string(w.folder)); err != nil {
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
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return flow.Fail(err)
}
