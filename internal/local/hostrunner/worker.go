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

// view is what is known of a Pod in the API.
type view int

const (
	viewUnknown view = iota // only what an earlier host runner saved is known
	viewLive                // it exists
	viewGone                // it does not exist any more
)

// worker runs one Pod, in one goroutine.
type worker struct {
	*host
	folder podFolder
	wake   chan struct{} // something of the first group of fields changed

	mu     sync.Mutex
	latest *corev1.Pod
	view   view

	// The rest belongs to the goroutine. pod and seen are latest and view as they
	// were when the pass began; pod is nil if nothing was ever known.
	pod  *corev1.Pod
	seen view

	recovered bool // looked for what an earlier host runner left
	process   *process.Process
	ending    *ending
	waiting   *corev1.ContainerStateWaiting
	held      holdCause // why the container waits
	announced holdCause // the last cause that there was an event for
	renew     time.Time // when tokens are due; zero if there are none
	stop      *stop     // set once the process was asked to end
	stopSeen  time.Time // when it was noticed that the host is to end; zero before
	failures  int       // passes in a row that failed
	retry     wait.Backoff
	finished  bool // there is nothing more to do, ever
}

// stop is the end of a process in progress.
type stop struct {
	host     bool      // it ends because the host does
	deadline time.Time // when it is killed
}

// learn takes a newer view of the Pod.
func (w *worker) learn(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view == viewGone {
		return
	}
	if w.view == viewLive {
		// Answers to our own writes and the watch overtake each other.
		order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, w.latest.ResourceVersion)
		if err == nil && order <= 0 {
			return
		}
	}
	w.latest, w.view = pod, viewLive
	w.notify()
}

// forget learns that the Pod does not exist any more.
func (w *worker) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.view = viewGone
	w.notify()
}

// forgetUnlessSeen is forget for a Pod that a complete list did not hold, unless it was
// created since.
func (w *worker) forgetUnlessSeen() {
	w.mu.Lock()
	unknown := w.view == viewUnknown
	w.mu.Unlock()
	if unknown {
		w.forget()
	}
}

func (w *worker) notify() {
	select {
	case w.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// run works until the Pod is gone, or the host stops and the process is no more.
func (w *worker) run(ctx context.Context) {
	for {
		after := w.pass(ctx)
		if w.finished || ctx.Err() != nil {
			return
		}
		if w.stopped() && !w.running() && (after == 0 || w.failures >= lastTries) {
			return
		}
		w.await(ctx, after)
	}
}

// await returns when there may be something to do, after the given time at the latest;
// zero is no limit.
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
		stopping = nil // it is known
	}
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timeout:
	case <-ended:
	case <-stopping:
	}
}

// pass looks at everything once. It returns when to look again at the latest; zero waits
// for an event.
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
	report := flow.Run(ctx, w, reports) // also of what could not be done
	if err := errors.Join(act.Err, report.Err); err != nil {
		w.failures++
		w.log().Info("will be tried again", "reason", err.Error())
		return earlier(w.retry.Step(), earlier(act.After, report.After))
	}
	w.failures, w.retry = 0, retryDelays
	return earlier(act.After, report.After)
}

// earlier returns the shorter of two times; zero is no limit.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// retryDelays are the pauses after failures in a row.
var retryDelays = wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: 15 * time.Second}

// running reports whether the process, or one that came from it, lives.
func (w *worker) running() bool { return w.process != nil && w.ending == nil }

// stopped reports whether the host is to end.
func (w *worker) stopped() bool { return w.stopping.Err() != nil }

// wanted reports whether the Pod's process shall run.
func (w *worker) wanted() bool { return !w.stopped() && !w.dismissed() }
