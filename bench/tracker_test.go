package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
)

var testPool = pool{client.ObjectKey{Namespace: "bench", Name: "bench"}, 2}

// event returns an event of a Machine of testPool.
func event(kind watch.EventType, name string, phase v1alpha1.MachinePhase, leaving bool) watch.Event {
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: testPool.Namespace, Name: name, Labels: map[string]string{"name": testPool.Name, v1alpha1.NodeLabelKey: "node-of-" + name},
	}}
	machine.Status.CurrentStatus.Phase = phase
	if leaving {
		machine.DeletionTimestamp = &metav1.Time{}
		*machine.DeletionTimestamp = metav1.Unix(1, 0)
	}
	return watch.Event{Type: kind, Object: machine}
}

func TestTracker_ReportsViolations(t *testing.T) {
	running := func(name string) watch.Event { return event(watch.Added, name, v1alpha1.MachineRunning, false) }
	b := bounds{most: 3, least: 1, leaving: 1}
	tests := map[string]struct {
		events []watch.Event
		want   string
	}{
		"within":     {events: []watch.Event{running("c"), event(watch.Modified, "a", v1alpha1.MachineRunning, true), event(watch.Deleted, "a", v1alpha1.MachineTerminating, true)}},
		"other pool": {events: []watch.Event{{Type: watch.Added, Object: &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "x"}}}}},
		"bookmark":   {events: []watch.Event{{Type: watch.Bookmark, Object: &v1alpha1.Machine{}}}},
		"too many": {
			events: []watch.Event{running("c"), running("d")}, want: "rolling-update: MachineDeployment bench/bench: 4 Machines exist, at most 3 are allowed",
		},
		"too many because one is still being deleted": {
			events: []watch.Event{running("c"), event(watch.Modified, "a", v1alpha1.MachineTerminating, true), running("d")}, want: "4 Machines exist",
		},
		"too few": {
			events: []watch.Event{event(watch.Modified, "a", v1alpha1.MachineUnknown, false), event(watch.Modified, "b", v1alpha1.MachinePending, false)},
			want:   "0 Machines are available, at least 1 are required",
		},
		"too many leave": {
			events: []watch.Event{running("c"), event(watch.Modified, "a", v1alpha1.MachineRunning, true), event(watch.Modified, "b", v1alpha1.MachineRunning, true)},
			want:   "2 Machines are being deleted, at most 1 are allowed",
		},
		"failed watch": {events: []watch.Event{{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Message: "too old"}}}, want: "the watch of all Machines failed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var failure error
			ctx, cancel := context.WithCancel(t.Context())
			tr := newTracker(mcmAPI.stateOf, func(err error) { failure = err; cancel() })
			for _, name := range []string{"a", "b"} {
				if err := tr.observe(running(name)); err != nil {
					t.Fatal(err)
				}
			}
			if err := tr.expect(rollingUpdate, map[client.ObjectKey]bounds{testPool.ObjectKey: b}); err != nil {
				t.Fatal(err)
			}
			events := watch.NewFake()
			ended := make(chan struct{})
			go func() { tr.run(ctx, events); close(ended) }()
			for _, e := range tc.events {
				select {
				case <-ended:
				default:
					events.Action(e.Type, e.Object)
				}
			}
			cancelUnlessFailed(tc.want, cancel)
			<-ended
			switch {
			case tc.want == "" && failure != nil:
				t.Errorf("got violation %v", failure)
			case tc.want != "" && (failure == nil || !strings.Contains(failure.Error(), tc.want)):
				t.Errorf("got violation %v, want one that contains %q", failure, tc.want)
			}
		})
	}
}

// cancelUnlessFailed cancels the tracker if no violation is expected, which would cancel it.
func cancelUnlessFailed(want string, cancel func()) {
	if want == "" {
		cancel()
	}
}

func TestTracker_CountsMachines(t *testing.T) {
	tr := newTracker(mcmAPI.stateOf, nil)
	for _, e := range []watch.Event{
		event(watch.Added, "a", v1alpha1.MachinePending, false), event(watch.Added, "b", v1alpha1.MachineRunning, false),
		event(watch.Added, "c", v1alpha1.MachineRunning, false), event(watch.Modified, "c", v1alpha1.MachineRunning, true),
		event(watch.Added, "d", "", false), event(watch.Deleted, "d", "", true),
	} {
		if err := tr.observe(e); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(census{existing: 3, leaving: 1, available: 1}, tr.census(testPool), cmp.AllowUnexported(census{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if nodes := tr.nodes(); len(nodes) != 3 || nodes[client.ObjectKey{Namespace: "bench", Name: "b"}] != "node-of-b" {
		t.Errorf("got nodes %v", nodes)
	}
	if gone := tr.gone(); gone != 1 {
		t.Errorf("got %d deleted Machines, want 1", gone)
	}
	if err := tr.expect(idle, map[client.ObjectKey]bounds{testPool.ObjectKey: {most: 2}}); err == nil {
		t.Error("expect does not check bounds that are already violated")
	}
	if gone := tr.gone(); gone != 0 {
		t.Errorf("got %d deleted Machines of an earlier phase", gone)
	}
}

func TestInstances_AreJudged(t *testing.T) {
	machines := map[client.ObjectKey]bool{{Namespace: "bench", Name: "a"}: true, {Namespace: "other", Name: "z"}: true}
	one := sim.History{MostAtOnce: 1, Left: 1}
	tests := map[string]struct {
		histories map[string]sim.History
		want      string
	}{
		"one each":       {histories: map[string]sim.History{"bench/a": one, "bench/gone": {MostAtOnce: 1}}},
		"two":            {histories: map[string]sim.History{"bench/a": one, "bench/gone": {MostAtOnce: 2}}, want: "the Machine bench/gone had 2 instances at the same time"},
		"without one":    {histories: map[string]sim.History{}, want: "the Machine bench/a has no instance"},
		"deleted itself": {histories: map[string]sim.History{"bench/a": {MostAtOnce: 1}}, want: "the Machine bench/a has no instance"},
		"outlives":       {histories: map[string]sim.History{"bench/a": one, "bench/gone": one}, want: "an instance of Machine bench/gone exists, but the Machine does not"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := judgeInstances(tc.histories, "bench", machines); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPhases_AreRejectedInImpossibleOrder(t *testing.T) {
	for phases, want := range map[string]string{
		strings.Join(defaultPhases, ","):        "",
		"scale-up,restart,not-ready,scale-down": "",
		"":                                      "must not be empty",
		"scale-up,grow":                         `unknown phase "grow"`,
		"scale-up,idle,idle":                    "idle is listed twice",
		"idle":                                  "idle needs Machines",
		"scale-up,scale-down,restart":           "restart needs Machines",
		"scale-up,rolling-update,scale-down,scale-up,scale-down": "scale-up is listed twice",
	} {
		var names []string
		if phases != "" {
			names = strings.Split(phases, ",")
		}
		err := checkPhases(names)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("phases %s: got error %v, want %q", phases, err, want)
		}
	}
}

func TestPools_ShareMachines(t *testing.T) {
	of := func(namespace, name string, machines int) pool {
		return pool{client.ObjectKey{Namespace: namespace, Name: name}, machines}
	}
	tests := map[string]struct {
		load load
		want []pool
	}{
		"one":      {load{machines: 5, pools: 1}, []pool{of("bench", "bench", 5)}},
		"two":      {load{machines: 5, pools: 2}, []pool{of("bench", "bench-0", 3), of("bench", "bench-1", 2)}},
		"clusters": {load{machines: 4, pools: 2, clusters: 2}, []pool{of("bench-0", "bench-0", 1), of("bench-0", "bench-1", 1), of("bench-1", "bench-2", 1), of("bench-1", "bench-3", 1)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.load.allPools(), cmp.AllowUnexported(pool{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBounds_OfPhases(t *testing.T) {
	w := &setup{options: options{load: load{surge: "20%", unavailable: "30%"}}}
	p := pool{client.ObjectKey{Namespace: "bench", Name: "bench"}, 10}
	w.pools = []pool{p}
	want := map[string]bounds{
		scaleUp:       {most: 10},
		rollingUpdate: {most: 12, least: 7, leaving: 10},
		idle:          {most: 10, least: 10},
		scaleDown:     {most: 10, leaving: 10},
		restart:       {most: 11, least: 10},
		notReady:      {most: 10},
		replace:       {most: 11, leaving: 1},
		drained:       {most: 10, leaving: 10},
	}
	got := map[string]bounds{}
	for name, k := range kinds {
		got[name] = k.phase(w).bounds(p)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(bounds{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestClientRequests_AreCountedLikeAPIServer checks that the benchmark counts its requests like the API server, from whose
// metrics it subtracts them.
func TestClientRequests_AreCountedLikeAPIServer(t *testing.T) {
	var own clientRequests
	own.reset()
	transport := own.wrap(roundTripper(func(r *http.Request) (*http.Response, error) {
		code := http.StatusOK
		if r.Method == http.MethodPost {
			code = http.StatusCreated
		}
		return &http.Response{StatusCode: code}, nil
	}))
	for _, request := range [][2]string{
		{"GET", "/api/v1/nodes?limit=1"}, {"GET", "/api/v1/nodes/a"}, {"GET", "/api/v1/nodes?watch=true"}, {"GET", "/metrics"},
		{"PATCH", "/api/v1/nodes/a/status"}, {"POST", "/api/v1/namespaces/b/pods/p/eviction"},
		{"DELETE", "/apis/storage.k8s.io/v1/volumeattachments/v"}, {"PATCH", "/apis/machine.sapcloud.io/v1alpha1/namespaces/b/machinedeployments/d"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), request[0], "https://example.com"+request[1], nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := transport.RoundTrip(r); err != nil { // it has no body
			t.Fatal(err)
		}
	}
	want := env.Totals{
		{Method: "LIST", Resource: "nodes", Code: 200}: 1, {Method: "GET", Resource: "nodes", Code: 200}: 1,
		{Method: "PATCH", Resource: "nodes/status", Code: 200}: 1, {Method: "POST", Resource: "pods/eviction", Code: 201}: 1,
		{Method: "DELETE", Group: "storage.k8s.io", Resource: "volumeattachments", Code: 200}:      1,
		{Method: "PATCH", Group: "machine.sapcloud.io", Resource: "machinedeployments", Code: 200}: 1,
	}
	if diff := cmp.Diff(want, own.counts()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	own.reset()
	if got := own.counts(); len(got) != 0 {
		t.Errorf("after a reset: got %v", got)
	}
}
