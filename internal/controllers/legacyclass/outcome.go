package legacyclass

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
)

// inputs contains what an outcome depends on.
type inputs struct {
	// generation is the generation of the object.
	generation int64
	// class is the UID and version of the MachineClass of the same name; empty if there is none.
	class string
	// driver is the name of the driver that was called. called reports whether one was called.
	driver string
	called bool
}

// outcome is why an object is not migrated.
type outcome struct {
	about inputs
	// code is the driver's error code. It is OK if the driver was not called or did not fail.
	code codes.Code
	// message is for users.
	message string
	// final reports that no driver migrates the object.
	final bool
	// backoff applies after the next failure. retry is when the driver is called again; if zero, it is called
	// only after a change.
	backoff wait.Backoff
	retry   time.Time
}

// memory contains the last failure of an object, and is kept between passes. If it is lost, the driver is called more
// often. It is safe for concurrent use. A nil memory is empty.
type memory struct {
	mu   sync.Mutex
	last *outcome
	sent events.Last
}

// failure returns the last outcome, or nil if there is none.
func (m *memory) failure() *outcome {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// record stores an outcome. It reports whether the topic differs from the last one, so that users must be informed.
func (m *memory) record(topic string, next outcome) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = &next
	return m.sent.News(reasonFailed, topic)
}

// retryNow clears the back-off if the driver was unavailable.
func (m *memory) retryNow(now time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != nil && m.last.code == codes.Unavailable {
		next := *m.last
		next.retry = now
		m.last = &next
	}
}

// wait returns why the driver must not be called yet, and for how long. A zero duration means until something changes.
func (m *memory) wait(about inputs, now time.Time) (time.Duration, string) {
	last := m.failure()
	switch {
	case last == nil || last.about != about:
		return 0, ""
	case last.retry.IsZero():
		return 0, last.message
	case now.Before(last.retry):
		return last.retry.Sub(now), last.message
	}
	return 0, ""
}

// recall returns the memory of an object, or nil if there is none.
func (c *Controller) recall(s *scope) *memory { return c.kinds[s.kind].memory.Find(s.key) }

// Migration is the progress of the migration of a class.
type Migration struct {
	// Pending reports that the class still has to be migrated. Until then, its Machines wait.
	Pending bool
	// Problem is why the class cannot be migrated; empty if no problem is known.
	Problem string
}

// Migration returns the progress of the migration of the class that a Machine refers to. It is safe for concurrent
// use.
func (c *Controller) Migration(ctx context.Context, namespace string, ref v1alpha1.ClassSpec) (Migration, error) {
	if !slices.Contains(c.Kinds, ref.Kind) {
		return Migration{}, nil
	}
	key := client.ObjectKey{Namespace: namespace, Name: ref.Name}
	err := c.Cache.Get(ctx, key, empty(ref.Kind))
	switch {
	case apierrors.IsNotFound(err):
		return Migration{Problem: fmt.Sprintf("%s %q not found in namespace %q", ref.Kind, ref.Name, namespace)}, nil
	case err != nil:
		return Migration{}, fmt.Errorf("reading %s %s: %w", ref.Kind, key, err)
	}
	last := c.recall(&scope{kind: ref.Kind, key: key}).failure()
	if last == nil {
		return Migration{Pending: true}, nil
	}
	return Migration{Pending: !last.final, Problem: fmt.Sprintf("cannot migrate %s %q to a MachineClass: %s", ref.Kind, ref.Name, last.message)}, nil
}

// maxMessage is the maximum length of a message in bytes, since messages from drivers and field names may be longer.
const maxMessage = 1024
