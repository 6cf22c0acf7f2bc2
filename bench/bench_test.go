package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) {
	program.Main()
	log.SetLogger(logr.Discard()) // as main does
	os.Exit(m.Run())
}

// written is the JSON result as its consumers read it. Fields may be added to the file, but none of these may be
// removed.
type written struct {
	Machines int            `json:"machines"`
	API      string         `json:"api"`
	Pools    int            `json:"pools"`
	Clusters int            `json:"clusters"`
	Replicas int            `json:"replicas"`
	MemoryMB float64        `json:"memoryMB"`
	Phases   []writtenPhase `json:"phases"`
}

type writtenPhase struct {
	Name               string         `json:"name"`
	Seconds            float64        `json:"seconds"`
	Requests           int            `json:"requests"`
	RequestsPerMachine float64        `json:"requestsPerMachine"`
	Events             int            `json:"events"`
	Writes             int            `json:"writes"`
	Conflicts          int            `json:"conflicts"`
	CPUSeconds         float64        `json:"cpuSeconds"`
	ByRequest          map[string]int `json:"byRequest"`
	ActedSeconds       float64        `json:"actedSeconds"`
	ReplaySeconds      float64        `json:"replaySeconds"`
	Pods               int            `json:"pods"`
	MemoryMB           float64        `json:"memoryMB"`
}

// TestRun_MeasuresAllPhases measures this project's manager with a few Machines in several pools.
func TestRun_MeasuresAllPhases(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("-short: this test needs a kube-apiserver")
	}
	const machines = 6
	all := []string{scaleUp, restart, notReady, rollingUpdate, idle, scaleDown}
	dir := t.TempDir()
	got := measureFew(t, dir, "--machines=6", "--pools=3", "--pods=2", "--phases="+strings.Join(all, ","))
	if got.Machines != machines || got.Pools != 3 || got.MemoryMB < 10 {
		t.Errorf("got result %+v", got)
	}
	var names []string
	for _, phase := range got.Phases {
		names = append(names, phase.Name)
		checkPhase(t, phase, machines)
		if phase.Name == restart {
			continue // the manager is not running when profiles begin
		}
		for _, profile := range []string{"-cpu-1.pb.gz", "-heap.pb.gz"} {
			if info, err := os.Stat(filepath.Join(dir, "profiles", phase.Name+profile)); err != nil || info.Size() == 0 {
				t.Errorf("%s: profile %s does not exist: %v", phase.Name, profile, err)
			}
		}
	}
	if diff := cmp.Diff(all, names); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// TestPods_FitOnNodes: pods have a realistic size, and no node has more pods than a kubelet allows.
func TestPods_FitOnNodes(t *testing.T) {
	tier.All(t)
	const pods = 2*podsPerNode + 1
	perNode, names := map[string]int{}, map[string]bool{}
	for i := range pods {
		p := pod(i)
		perNode[p.Spec.NodeName]++
		names[p.Name] = true
		if content, err := json.Marshal(p); err != nil || len(content) < 3000 || len(content) > 4500 {
			t.Fatalf("pod %d has %d bytes, error %v", i, len(content), err)
		}
	}
	want := map[string]int{node(0).Name: podsPerNode, node(1).Name: podsPerNode, node(2).Name: 1}
	if diff := cmp.Diff(want, perNode); diff != "" {
		t.Errorf("pods per node (-want +got):\n%s", diff)
	}
	if nodes := (load{pods: pods}).otherNodes(); nodes != len(want) || len(names) != pods {
		t.Errorf("got %d nodes and %d names", nodes, len(names))
	}
}

// TestRun_MeasuresReplacementAndDrain: after the health timeout, Machines are replaced one by one. In a drain, pods are
// evicted within their budgets, and their volumes are moved.
func TestRun_MeasuresReplacementAndDrain(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("-short: this test needs a kube-apiserver")
	}
	const machines, pods = 10, 20
	got := measureFew(t, t.TempDir(), "--machines=10", "--replacements=2", "--health-timeout=1s",
		"--pods-per-machine=2", "--volumes-per-machine=1", "--replay", "--phases=scale-up,replace,drain")
	replaced, drain := got.Phases[1], got.Phases[2]
	if replaced.ByRequest["DELETE machines"] < 2 || replaced.ByRequest["DELETE machines"] > 4 {
		t.Errorf("got %+v", replaced)
	}
	if drain.Pods != pods || drain.ByRequest["POST pods/eviction"] < pods || drain.ByRequest["DELETE nodes"] != machines {
		t.Errorf("got %+v", drain)
	}
	for _, own := range []string{"DELETE pods", "DELETE volumeattachments", "POST volumeattachments", "PUT poddisruptionbudgets/status"} {
		if count := drain.ByRequest[own]; count > 0 {
			t.Errorf("%d requests %s of simulated programs or the API server are counted", count, own)
		}
	}
	for _, phase := range got.Phases {
		if phase.ReplaySeconds <= 0 {
			t.Errorf("%s: the writes were not replayed", phase.Name)
		}
	}
}

// TestRun_MeasuresFleet: a fleet serves several clusters, each of which has its own nodes.
func TestRun_MeasuresFleet(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("-short: this test needs a kube-apiserver")
	}
	got := measureFew(t, t.TempDir(), "--machines=6", "--clusters=3", "--phases=scale-up,scale-down")
	if got.Clusters != 3 || got.Replicas != 1 || len(got.Phases) != 2 {
		t.Errorf("got %+v", got)
	}
	for _, phase := range got.Phases {
		checkPhase(t, phase, 6)
	}
}

// TestRun_MeasuresClusterAPI measures this project's manager next to the core of Cluster API, whose requests must not be counted.
func TestRun_MeasuresClusterAPI(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("-short: this test needs a kube-apiserver")
	}
	const machines = 4
	phases := strings.Join(apis[capi].phases, ",")
	got := measureFew(t, t.TempDir(), "--api=capi", "--machines=4", "--pools=2", "--phases="+phases)
	if got.API != capi || len(got.Phases) != len(apis[capi].phases) {
		t.Errorf("got %+v", got)
	}
	for _, phase := range got.Phases {
		checkClusterAPIPhase(t, phase, machines)
	}
}

// checkClusterAPIPhase checks that only requests of the manager are counted, and none of the core and of kubelets.
func checkClusterAPIPhase(t *testing.T, phase writtenPhase, machines int) {
	t.Helper()
	for request := range phase.ByRequest {
		if _, resource, _ := strings.Cut(request, " "); !strings.HasPrefix(resource, "millwright") && request != "GET secrets" && request != "PATCH secrets" {
			t.Errorf("%s: requests %s of another client are counted", phase.Name, request)
		}
	}
	least := map[string]int{scaleUp: 2 * machines, rollingUpdate: 3 * machines, idle: 0, restart: 2, scaleDown: machines}[phase.Name]
	if phase.Seconds <= 0 || phase.Writes < least || phase.Requests < phase.Writes {
		t.Errorf("%s: got %+v, want at least %d writes", phase.Name, phase, least)
	}
	if phase.Name == idle && phase.Requests+phase.Events > 0 {
		t.Errorf("an idle manager made %d requests and %d events", phase.Requests, phase.Events)
	}
	if phase.Name == restart && phase.ActedSeconds <= 0 {
		t.Error("restart: the time until the first write was not measured")
	}
}

// measureFew runs the benchmark and returns the result that it wrote.
func measureFew(t *testing.T, dir string, args ...string) written {
	t.Helper()
	o, err := parse(append(args, "--idle=1s", "--millwright", os.Args[0], "--json", filepath.Join(dir, "result.json"),
		"--keep", filepath.Join(dir, "kept"), "--profiles", filepath.Join(dir, "profiles")), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.manager.environment = program.Command(t.Context()).Env
	o.limitRequests, o.profileSeconds, o.quietFor = 50, 1, time.Second
	var out strings.Builder
	if err := run(t.Context(), *o, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	content, err := os.ReadFile(filepath.Join(dir, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got written
	if err := json.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// checkPhase checks that the manager made the minimum number of requests, each of them once, and that requests of the
// benchmark itself are not counted.
func checkPhase(t *testing.T, phase writtenPhase, machines int) {
	t.Helper()
	if phase.Seconds <= 0 {
		t.Errorf("%s took %g s", phase.Name, phase.Seconds)
	}
	switch phase.Name {
	case restart:
		if phase.ActedSeconds <= 0 || phase.ByRequest["POST machines"] != 1 || phase.Requests > mcmBudgets[restart].inAll {
			t.Errorf("restart: got %+v", phase)
		}
		return
	case notReady:
		checkNotReady(t, phase, machines)
		return
	case idle:
		if phase.Requests > 5 || phase.Events > 0 {
			t.Errorf("an idle manager made %d requests and %d events", phase.Requests, phase.Events)
		}
		return
	}
	checkRequests(t, phase, machines)
	if phase.Requests < phase.Writes || phase.Writes < 5*machines || phase.CPUSeconds <= 0 {
		t.Errorf("%s: got %+v", phase.Name, phase)
	}
	if listed := phase.ByRequest["LIST machines"] + phase.ByRequest["LIST nodes"]; listed > 0 {
		t.Errorf("%s: lists of the benchmark itself are counted: %v", phase.Name, phase.ByRequest)
	}
}

// checkNotReady checks that the manager recorded each change of a node, and replaced no Machine.
func checkNotReady(t *testing.T, phase writtenPhase, machines int) {
	t.Helper()
	if got := phase.ByRequest["PATCH machines/status"]; got < 2*machines || got > 3*machines {
		t.Errorf("not-ready: got %d status patches, want one for each change of %d nodes", got, machines)
	}
	if got := phase.ByRequest["POST machines"] + phase.ByRequest["DELETE machines"] + phase.ByRequest["PATCH nodes/status"]; got > 0 {
		t.Errorf("not-ready: Machines were replaced, or requests of the benchmark itself are counted: %v", phase.ByRequest)
	}
}

// checkRequests checks the number of creations and deletions in a phase that changes all Machines.
func checkRequests(t *testing.T, phase writtenPhase, machines int) {
	t.Helper()
	want := map[string]map[string]int{
		scaleUp:       {"POST machines": machines, "POST nodes": machines},
		rollingUpdate: {"POST machines": machines, "DELETE machines": machines, "POST nodes": machines, "DELETE nodes": machines},
		scaleDown:     {"DELETE machines": machines, "DELETE nodes": machines},
	}
	for request, count := range want[phase.Name] {
		// A simulated kubelet registers its node again if the API server was too slow to write its status.
		retried := request == "POST nodes" && phase.ByRequest[request] > count
		if phase.ByRequest[request] != count && !retried {
			t.Errorf("%s: got %d requests %s, want %d", phase.Name, phase.ByRequest[request], request, count)
		}
	}
}

// TestManager_ErrorContainsLogAfterExit: the error contains the last lines of the manager's log.
func TestManager_ErrorContainsLogAfterExit(t *testing.T) {
	p, err := startManager(managerOptions{command: "echo {namespace} {qps} is wrong; exit 3", qps: 7}, t.TempDir(), strings.NewReplacer("{namespace}", "here"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := p.alive(t.Context())
	defer cancel()
	err = pause(ctx, time.Minute)
	for _, want := range []string{"exit status 3", "here 7 is wrong"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %q", err, want)
		}
	}
}

// TestManager_UsageIncludesChildProcesses: usage includes processes that a shell started, and stop kills them.
func TestManager_UsageIncludesChildProcesses(t *testing.T) {
	p, err := startManager(managerOptions{command: "sleep 1000 & sleep 1000 & echo ready; wait"}, t.TempDir(), strings.NewReplacer())
	if err != nil {
		t.Fatal(err)
	}
	err = await(t.Context(), 10*time.Millisecond, func() (bool, error) { return p.lastLines() == "ready", nil })
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	members := func(s procfs.ProcStat) bool {
		if s.PGRP == p.PID() && s.State != "Z" {
			found = append(found, s.PID)
		}
		return s.PGRP == p.PID()
	}
	if used, err := usageOf(members); err != nil || len(found) != 3 || used.peak < 1e5 || used.resident < 1e5 {
		t.Errorf("found processes %v with usage %+v, error %v", found, used, err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	// A killed process stays listed until its new parent has waited for it.
	err = await(t.Context(), 10*time.Millisecond, func() (bool, error) {
		found = nil
		_, err := usageOf(members)
		return len(found) == 0, err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestResult_ContainsAllNumbers(t *testing.T) {
	p := &phaseResult{Name: scaleUp, took: 2 * time.Second, requests: map[env.RequestKey]int{
		{Method: "POST", Resource: "machines", Code: 201}:         4,
		{Method: "POST", Resource: "nodes", Code: 409}:            1, // already exists, which is not a conflict
		{Method: "PATCH", Resource: "machines/status", Code: 200}: 10,
		{Method: "PATCH", Resource: "machines/status", Code: 409}: 2,
		{Method: "PUT", Resource: "machines/status", Code: 409}:   1,
		{Method: "DELETE", Resource: "nodes", Code: 200}:          3,
		{Method: "LIST", Resource: "pods", Code: 200}:             6,
	}}
	p.complete(4, limit{Creates: 10, Patches: 13, Deletes: 6})
	want := &phaseResult{
		Name: scaleUp, Seconds: 2, LimitSeconds: 2, Requests: 27, RequestsPerMachine: 6.75, Writes: 21, Conflicts: 3,
		ByRequest: map[string]int{
			"POST machines": 4, "POST nodes": 1, "PATCH machines/status": 12, "PUT machines/status": 1, "DELETE nodes": 3, "LIST pods": 6,
		},
	}
	p.took, p.requests = 0, nil
	if diff := cmp.Diff(want, p, cmp.AllowUnexported(phaseResult{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBudget_IsExceeded(t *testing.T) {
	r := &result{API: mcm, Phases: []*phaseResult{
		{Name: scaleUp, RequestsPerMachine: 9.5}, {Name: rollingUpdate, RequestsPerMachine: 21.01},
		{Name: idle, Requests: 6}, {Name: scaleDown, RequestsPerMachine: 8.5},
	}}
	over := r.overBudget()
	if over == nil || !strings.HasPrefix(over.Error(), rollingUpdate) || !strings.Contains(over.Error(), "\n"+idle) || strings.Count(over.Error(), "\n") != 1 {
		t.Errorf("want two phases over their budgets, got %v", over)
	}
	r.Phases = r.Phases[:1]
	if over := r.overBudget(); over != nil {
		t.Errorf("within the budget: got error %v", over)
	}
}

func TestTable_ShowsBudgets(t *testing.T) {
	r := &result{Machines: 1, API: mcm}
	for _, name := range []string{scaleUp, idle, notReady} {
		r.Phases = append(r.Phases, &phaseResult{Name: name, Seconds: 1})
	}
	got := map[string]string{}
	for line := range strings.Lines(r.table()) {
		if fields := strings.Fields(line); len(fields) > 10 {
			got[fields[0]] = strings.Join(fields[1:], " ")
		}
	}
	for name, want := range map[string]string{scaleUp: "0.00 9.5 0", idle: "0.00 5 in total 0", notReady: "0.00 - 0"} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s: got row %q, want %q in it", name, got[name], want)
		}
	}
}

func TestParse_RejectsInvalidArguments(t *testing.T) {
	for _, args := range [][]string{{"--machines=0"}, {"--pods=-1"}, {"--qps=0"}, {"--burst=0"}, {"--idle=-1s"}, {"--timeout=0"}, {"more"},
		{"--clusters=-1"}, {"--replicas=0"}, {"--replicas=2"}, {"--clusters=2", "--replicas=3"}, {"--clusters=101"}, {"--clusters=51", "--pools=2"}, {"--clusters=1", "--pods=1"}, {"--clusters=1", "--provider-spec={}"},
		{"--clusters=1", "--phases=scale-up,drain"}, {"--pods-per-machine=0"}, {"--volumes-per-machine=11"}, {"--phases=idle"}, {"--pools=0"}, {"--pools=101"}, {"--health-timeout=0"},
		{"--phases=scale-up,replace", "--health-timeout=1s", "--replacements=0"}, {"--phases=scale-up,replace", "--health-timeout=1s", "--replacements=101"},
		{"--phases=scale-up,replace", "--health-timeout=30m"}, {"--phases=scale-up,not-ready,replace", "--health-timeout=1s"}, {"--api=other"}, {"--api=capi", "--clusters=2"}, {"--api=capi", "--replay"},
		{"--api=capi", "--pods=1"}, {"--api=capi", "--phases=scale-up,drain"}, {"--unknown"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse accepted %v", args)
		}
	}
	if o, err := parse(nil, io.Discard); err != nil || o.load.machines != 100 {
		t.Errorf("got defaults %+v, error %v", o, err)
	}
	if _, err := (load{providerSpec: "{"}).spec(namespace); err == nil {
		t.Error("a providerSpec that is not JSON is accepted")
	}
}
