package nodeevents

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) { env.Main(m) }

// scripted is a sink that returns scripted errors and records its calls.
type scripted struct {
	err   error
	calls []string
}

func (s *scripted) do(verb string, event *corev1.Event) (*corev1.Event, error) {
	s.calls = append(s.calls, verb)
	return event, s.err
}

func (s *scripted) Create(event *corev1.Event) (*corev1.Event, error) { return s.do("create", event) }

func (s *scripted) Update(event *corev1.Event) (*corev1.Event, error) { return s.do("update", event) }

func (s *scripted) Patch(event *corev1.Event, _ []byte) (*corev1.Event, error) {
	return s.do("patch", event)
}

// TestSink_DropsForbiddenEvents checks that forbidden events cause no error and no repeated requests.
func TestSink_DropsForbiddenEvents(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	inner := &scripted{err: apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", errors.New("no rule"))}
	sink := &optionalSink{EventSink: inner, clock: clock, log: logr.Discard()}
	event := &corev1.Event{Message: "m"}
	send := func() {
		t.Helper()
		for _, send := range []func() (*corev1.Event, error){
			func() (*corev1.Event, error) { return sink.Create(event) },
			func() (*corev1.Event, error) { return sink.Update(event) },
			func() (*corev1.Event, error) { return sink.Patch(event, nil) },
		} {
			if got, err := send(); err != nil || got != event {
				t.Fatalf("event %v, err %v", got, err)
			}
		}
	}
	send()
	clock.Step(forbiddenRetry - time.Second)
	send()
	if !slices.Equal(inner.calls, []string{"create"}) {
		t.Fatalf("calls %q, want one", inner.calls)
	}
	inner.err, inner.calls = nil, nil
	clock.Step(time.Second)
	send()
	if !slices.Equal(inner.calls, []string{"create", "update", "patch"}) {
		t.Errorf("calls %q after permission was granted", inner.calls)
	}
}

// TestSink_ReturnsOtherErrors checks that other errors are returned to the broadcaster, which decides what
// to retry.
func TestSink_ReturnsOtherErrors(t *testing.T) {
	away := errors.New("connection refused")
	inner := &scripted{err: away}
	sink := &optionalSink{EventSink: inner, clock: testingclock.NewFakeClock(time.Now()), log: logr.Discard()}
	for range 2 {
		if _, err := sink.Create(&corev1.Event{}); !errors.Is(err, away) {
			t.Errorf("err %v", err)
		}
	}
	if len(inner.calls) != 2 {
		t.Errorf("asked %q", inner.calls)
	}
}

// TestStart_RecordsEventOnNode checks the event that is created with sufficient permissions.
func TestStart_RecordsEventOnNode(t *testing.T) {
	tier.All(t)
	e := env.New(t)
	recorder, stop, err := Start(e.Admin, env.NewScheme(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-" + e.Namespace, UID: "uid-of-the-node"}}
	recorder.Event(node, corev1.EventTypeNormal, "MachineTerminating", "Machine a/b is being deleted")
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(e.Client.List(t.Context(), events, client.InNamespace(metav1.NamespaceDefault))).To(gomega.Succeed())
		events.Items = slices.DeleteFunc(events.Items, func(event corev1.Event) bool { return event.InvolvedObject.Name != node.Name })
		g.Expect(events.Items).To(gomega.HaveLen(1))
		got := events.Items[0]
		g.Expect(got.InvolvedObject.Kind).To(gomega.Equal("Node"))
		g.Expect(got.InvolvedObject.UID).To(gomega.Equal(node.UID))
		g.Expect(got.Source.Component).To(gomega.Equal("machine-controller"))
	}).WithTimeout(env.WaitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}
