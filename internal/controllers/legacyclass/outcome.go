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

// inputs are what an outcome depends on.
type inputs struct {
	// generation of the object.
	generation int64
	// class is the version of the MachineClass of the same name; empty if there is none.
	class string
	// driver is the name of the one that was asked, if one was.
	driver string
	asked  bool
}

// outcome is why an object is not migrated.
type outcome struct {
	about inputs
	// code of the driver; OK if it was not asked, or did not fail.
	code codes.Code
	// message for people.
	message string
	// final says that no driver migrates the object.
	final bool
	// backoff after the next failure, and retry, when the driver is called again; zero: when
	// something changes.
	backoff wait.Backoff
	retry   time.Time
}

// memory is what is remembered of an object between reconciles: its last failure. Losing it costs calls only.
// It is safe for concurrent use. A nil memory remembers nothing.
type memory struct {
	mu   sync.Mutex
	last *outcome
	said events.Said
}

// failure returns the last outcome; nil if there is none.
func (m *memory) failure() *outcome {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// note stores an outcome. It reports whether users have to be told: it is not about the same as the last one.
func (m *memory) note(same string, next outcome) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = &next
	return m.said.News(reasonFailed, same)
}

// retryNow has a driver that was not available called again.
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

// wait returns why the driver is not to be called yet, and for how long; no time means until
// something changes.
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

// recall returns what is remembered of an object; nil if there is nothing.
func (c *Controller) recall(s *scope) *memory { return c.kinds[s.kind].memory.Find(s.key) }

// Migration is where the migration of a class stands.
type Migration struct {
	// Pending says that the class is to be migrated. Then its Machines wait.
	Pending bool
	// Problem says what keeps it from being migrated; empty if nothing is known.
	Problem string
}

// Migration returns where the migration of the class that a Machine refers to stands. It may be
// called concurrently.
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
	return Migration{Pending: !last.final, Problem: fmt.Sprintf("%s %q is not migrated to a MachineClass: %s", ref.Kind, ref.Name, last.message)}, nil
}

// longestMessage limits the bytes of what is said, as neither drivers nor names of fields do.
const longestMessage = 1024
