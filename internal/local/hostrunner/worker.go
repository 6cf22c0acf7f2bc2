package hostrunner

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/internal/local/process"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// view is what the API server has reported about a Pod.
type view int

const (
	viewUnknown view = iota // nothing yet; an earlier host runner may have saved the Pod
	viewLive                // the Pod exists
	viewGone                // the Pod no longer exists
)

// worker runs one Pod, in one goroutine.
type worker struct {
	*host
	dir  podDir
	wake chan struct{} // receives when the next group of fields changed

	mu     sync.Mutex
	latest *corev1.Pod
	view   view

	// The following fields belong to the goroutine. pod and seen are latest and view at the beginning of the
	// pass; pod is nil if the Pod was never known.
	pod  *corev1.Pod
	seen view

	admitted  bool // the host may run the Pod
	recovered bool // searched for a process of an earlier host runner
	process   *process.Process
	ending    *ending
	waiting   *corev1.ContainerStateWaiting
	announced string    // message of the last warning event
	renew     time.Time // when tokens are renewed; zero if there are none
	stop      *stop     // set once the process got SIGTERM
	stopSeen  time.Time // when the worker noticed that the host is stopping, or zero
	failures  int       // consecutive passes that failed
	retry     wait.Backoff
	finished  bool // the worker exits
}

// stop is a termination in progress.
type stop struct {
	host     bool      // the reason is that the host is stopping
	urged    bool      // the host is stopping, too
	began    time.Time // when SIGTERM was sent
	deadline time.Time // when the process is killed
}

// learn stores a newer state of the Pod.
func (w *worker) learn(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view == viewGone {
		return
	}
	if w.view == viewLive {
		// Responses to writes and events of the watch may arrive in any order.
		order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, w.latest.ResourceVersion)
		if err == nil && order <= 0 {
			return
		}
	}
	w.latest, w.view = pod, viewLive
	notify(w.wake)
}

// forget records that the Pod no longer exists.
func (w *worker) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.view = viewGone
	notify(w.wake)
}

// forgetUnlessSeen is like forget for a Pod that was not in a list, unless a later event included it.
func (w *worker) forgetUnlessSeen() {
	w.mu.Lock()
	unknown := w.view == viewUnknown
	w.mu.Unlock()
	if unknown {
		w.forget()
	}
}

// run runs until the Pod is gone, or the host stops and the process has exited.
func (w *worker) run(ctx context.Context) {
	for {
		after := w.pass(ctx)
		if w.finished || ctx.Err() != nil {
			return
		}
		if w.stopped() && !w.running() && (after == 0 || w.failures >= finalTries) {
			return
		}
		w.await(ctx, after)
	}
}

// await waits for an event, or until the given time has passed. Zero means no limit.
func (w *worker) await(ctx context.Context, after time.Duration) {
	var timeout <-chan time.Time
	if after > 0 {
		timer := w.Clock.NewTimer(after)
		defer timer.Stop()
		timeout = timer.C()
	}
	var ended <-chan struct{}
	if w.running() {
		ended = w.process.Ended()
	}
	stopping := w.stopping.Done()
	if !w.stopSeen.IsZero() {
		stopping = nil // seen before
	}
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timeout:
	case <-ended:
	case <-stopping:
	}
}

// pass reconciles the Pod once. It returns the time after which to do so again. Zero means at the next event.
func (w *worker) pass(ctx context.Context) time.Duration {
	w.mu.Lock()
	w.pod, w.seen = w.latest, w.view
	w.mu.Unlock()
	if w.stopped() && w.stopSeen.IsZero() {
		w.stopSeen = w.Clock.Now()
	}

	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	act := flow.Run(ctx, w, actions)
	report := flow.Run(ctx, w, reports) // also after failed actions
	if err := errors.Join(act.Err, report.Err); err != nil {
		w.failures++
		w.log().Info("the pass failed; retrying", "reason", err.Error())
		return flow.Sooner(w.retry.Step(), flow.Sooner(act.After, report.After))
	}
	w.failures, w.retry = 0, retryDelays
	return flow.Sooner(act.After, report.After)
}

var retryDelays = wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: 15 * time.Second}

// running reports whether the process or a descendant runs.
func (w *worker) running() bool { return w.process != nil && w.ending == nil }

// stopped reports whether the host stops.
func (w *worker) stopped() bool { return w.stopping.Err() != nil }

// shouldRun reports whether the process should run.
func (w *worker) shouldRun() bool { return !w.stopped() && !w.dismissed() }
