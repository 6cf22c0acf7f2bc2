package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/directory"
	"github.com/millwright-dev/millwright/test/support/env"
)

// result is the result of a benchmark and the format of its JSON. Fields may be added but not removed.
type result struct {
	Machines int `json:"machines"`
	// API is the name of the API of these Machines. Results of older versions, which measured only mcm, do not have it.
	API string `json:"api"`
	// Pools is the number of MachineDeployments with these Machines.
	Pools int `json:"pools"`
	// Clusters is the number of clusters that a fleet serves. It is 0 if a single manager is measured.
	Clusters int `json:"clusters,omitempty"`
	// Replicas is the number of processes of the fleet. Results of older versions, which ran only one, do not have it.
	Replicas int `json:"replicas,omitempty"`
	// MemoryMB is the peak resident memory, summed over the manager's processes.
	MemoryMB  float64        `json:"memoryMB"`
	Phases    []*phaseResult `json:"phases"`
	APIServer limit          `json:"apiserver"`

	qps int
}

// phaseResult is the cost of a phase. Requests are requests for API objects, without watches, leases and events.
type phaseResult struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// ActedSeconds is the time from the start of the manager until it carried out a change. It is 0 in phases that do not
	// start it.
	ActedSeconds float64 `json:"actedSeconds,omitempty"`
	// LimitSeconds is the time that an API server without other load needs for the writes.
	LimitSeconds       float64 `json:"limitSeconds"`
	Requests           int     `json:"requests"`
	RequestsPerMachine float64 `json:"requestsPerMachine"`
	// Pods is the number of pods that were evicted. It is 0 in most phases, as are the requests for each of them.
	Pods           int     `json:"pods,omitempty"`
	RequestsPerPod float64 `json:"requestsPerPod,omitempty"`
	// ReplaySeconds is the time that a plain client needs for the same writes, see --replay.
	ReplaySeconds float64 `json:"replaySeconds,omitempty"`
	Events        int     `json:"events"`
	// Writes are requests that create, change or delete objects.
	Writes int `json:"writes"`
	// Conflicts are writes that were rejected with status 409.
	Conflicts int `json:"conflicts"`
	// CPU of the manager's processes. ControlPlaneCPU is that of kube-apiserver and etcd.
	CPU             float64 `json:"cpuSeconds"`
	ControlPlaneCPU float64 `json:"controlPlaneCPUSeconds"`
	// MemoryMB is the resident memory of the manager's processes at the end of the phase. PeakMB is the highest since they
	// were started.
	MemoryMB float64 `json:"memoryMB"`
	PeakMB   float64 `json:"peakMB"`
	// ByRequest is the number of requests by verb and resource.
	ByRequest map[string]int `json:"byRequest"`

	took     time.Duration
	requests env.Totals
	// own are the requests of the benchmark itself, and those of the API server for evictions.
	own env.Totals
	// replayed is how long the writes, including own ones, took without a manager. It is 0 if they were not replayed.
	replayed time.Duration
}

// complete computes the fields that are derived from the requests.
func (p *phaseResult) complete(machines int, found limit) {
	methods := map[string]int{}
	p.ByRequest = map[string]int{}
	for request, count := range p.requests {
		p.Requests += count
		methods[request.Method] += count
		p.ByRequest[request.Method+" "+request.Resource] += count
		if !slices.Contains([]string{"GET", "LIST", "CONNECT"}, request.Method) {
			p.Writes += count
		}
		if request.Code == http.StatusConflict && request.Method != http.MethodPost {
			p.Conflicts += count
		}
	}
	p.RequestsPerMachine = round(float64(p.Requests)/float64(machines), 2)
	if p.Pods > 0 {
		p.RequestsPerPod = round(float64(p.Requests)/float64(p.Pods), 2)
	}
	p.Seconds, p.ReplaySeconds = round(p.took.Seconds(), 2), round(p.replayed.Seconds(), 2)
	p.LimitSeconds = round(found.least(methods).Seconds(), 2)
	p.CPU, p.ControlPlaneCPU = round(p.CPU, 2), round(p.ControlPlaneCPU, 2)
}

// megabytes converts bytes for the result.
func megabytes(bytes int64) float64 { return round(float64(bytes)/1e6, 1) }

func round(number float64, digits int) float64 {
	shift := math.Pow10(digits)
	return math.Round(number*shift) / shift
}

// write writes the result as JSON and replaces an earlier one.
func (r *result) write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode the result: %w", err)
	}
	return directory.WriteFile(path, append(content, '\n'))
}

// budget is the maximum cost of a phase.
type budget struct {
	// perMachine and inAll are numbers of requests. Zero means that there is no such budget.
	perMachine float64
	inAll      int
}

// text returns the budget for a table.
func (b budget) text() string {
	switch {
	case b.inAll > 0:
		return fmt.Sprintf("%d in total", b.inAll)
	case b.perMachine > 0:
		return fmt.Sprintf("%g", b.perMachine)
	default:
		return "-"
	}
}

func (b budget) exceeded(p *phaseResult) bool {
	return b.perMachine > 0 && p.RequestsPerMachine > b.perMachine || b.inAll > 0 && p.Requests > b.inAll
}

// mcmBudgets are numbers of requests, which do not depend on the hardware. Budgets of seconds are in
// docs/contributing/performance.md.
var mcmBudgets = map[string]budget{
	scaleUp:       {perMachine: 9.5},
	rollingUpdate: {perMachine: 21},
	idle:          {inAll: 5},
	scaleDown:     {perMachine: 8.5},
	restart:       {inAll: 50},
}

// budget returns the budget of a phase.
func (r *result) budget(p *phaseResult) budget { return apis[r.API].budgets[p.Name] }

// overBudget returns an error that lists the phases that exceeded their budgets.
func (r *result) overBudget() error {
	var over []error
	for _, p := range r.Phases {
		if b := r.budget(p); b.exceeded(p) {
			over = append(over, fmt.Errorf("%s: %d requests (%.2f per Machine) exceed the budget of %s", p.Name, p.Requests, p.RequestsPerMachine, b.text()))
		}
	}
	return errors.Join(over...)
}

// table returns the result as a text table.
func (r *result) table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, at most %d requests per second and client\n", r.size(), r.qps)
	fmt.Fprintf(&text, "memory: %.1f MB\n", r.MemoryMB)
	fmt.Fprintf(&text, "the API server's limit per second: %.0f creates, %.0f status patches, %.0f deletes\n\n",
		r.APIServer.Creates, r.APIServer.Patches, r.APIServer.Deletes)
	r.phaseTable(&text)
	for _, p := range r.Phases {
		text.WriteString(p.details())
	}
	text.WriteString("\nRequests by verb and resource:\n\n")
	r.requestTable(&text)
	if over := r.overBudget(); over != nil {
		fmt.Fprintf(&text, "\n%v\n", over)
	}
	return text.String()
}

// size describes the number of Machines and how they are divided.
func (r *result) size() string {
	text := fmt.Sprintf("%d Machines", r.Machines)
	if r.Pools > 1 {
		text += fmt.Sprintf(" in %d MachineDeployments", r.Pools)
	}
	if r.Clusters > 0 {
		text += fmt.Sprintf(" of %d clusters", r.Clusters)
	}
	if r.Replicas > 1 {
		text += fmt.Sprintf(", served by %d replicas", r.Replicas)
	}
	if r.API == capi {
		text += " of Cluster API"
	}
	return text
}

// details returns lines about values that only some phases have.
func (p *phaseResult) details() string {
	var text strings.Builder
	if p.ActedSeconds > 0 {
		fmt.Fprintf(&text, "\n%s: the manager carried out a change %.1f s after its start\n", p.Name, p.ActedSeconds)
	}
	if p.Pods > 0 {
		fmt.Fprintf(&text, "\n%s: %d pods were evicted, with %.2f requests for each\n", p.Name, p.Pods, p.RequestsPerPod)
	}
	if p.ReplaySeconds > 0 {
		fmt.Fprintf(&text, "\n%s: %.2f times the %.1f s that a plain client needs for the same writes\n", p.Name, p.Seconds/p.ReplaySeconds, p.ReplaySeconds)
	}
	return text.String()
}

func (r *result) phaseTable(text *strings.Builder) {
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	row(table, "PHASE", "SECONDS", "AT LIMIT", "REQUESTS", "PER MACHINE", "BUDGET", "WRITES", "CONFLICTS", "EVENTS", "CPU", "CPU OF CONTROL PLANE", "MEMORY")
	for _, p := range r.Phases {
		atLimit := "-"
		if p.Name != idle {
			atLimit = fmt.Sprintf("%.0f %%", 100*p.LimitSeconds/p.Seconds)
		}
		row(table, p.Name, fmt.Sprintf("%.1f", p.Seconds), atLimit, strconv.Itoa(p.Requests), fmt.Sprintf("%.2f", p.RequestsPerMachine), r.budget(p).text(),
			strconv.Itoa(p.Writes), strconv.Itoa(p.Conflicts), strconv.Itoa(p.Events), fmt.Sprintf("%.1f s", p.CPU), fmt.Sprintf("%.1f s", p.ControlPlaneCPU), fmt.Sprintf("%.1f MB", p.MemoryMB))
	}
	table.Flush()
}

func (r *result) requestTable(text *strings.Builder) {
	header := []string{"VERB", "RESOURCE"}
	sums := map[string]int{}
	for _, p := range r.Phases {
		header = append(header, strings.ToUpper(p.Name))
		for request, count := range p.ByRequest {
			sums[request] += count
		}
	}
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	row(table, header...)
	requests := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(sums[b]-sums[a], strings.Compare(a, b))
	})
	for _, request := range requests {
		verb, resource, _ := strings.Cut(request, " ")
		cells := []string{verb, resource}
		for _, p := range r.Phases {
			cells = append(cells, strconv.Itoa(p.ByRequest[request]))
		}
		row(table, cells...)
	}
	table.Flush()
}

// row writes a line of a table.
func row(table *tabwriter.Writer, cells ...string) {
	fmt.Fprintln(table, strings.Join(cells, "\t")) // writes to memory, so it cannot fail
}

// limit is the number of requests per second that the API server can process without other load. No manager can be
// faster, so the limit makes times comparable that were measured on different hardware.
type limit struct {
	Creates float64 `json:"createsPerSecond"`
	Patches float64 `json:"patchesPerSecond"`
	Deletes float64 `json:"deletesPerSecond"`
}

const (
	// limitNamespace differs from the manager's namespace.
	limitNamespace = "limit"
	// limitRequests is large enough for stable numbers.
	limitRequests = 500
)

// limits measures the API server.
func (w *setup) limits(ctx context.Context) (limit, error) {
	if err := w.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: limitNamespace}}); err != nil {
		return limit{}, err
	}
	var best limit
	for range 3 { // the first round is a warm-up
		found, err := w.limitRound(ctx, w.limitRequests)
		if err != nil {
			return limit{}, fmt.Errorf("cannot measure the API server: %w", err)
		}
		best = limit{max(best.Creates, found.Creates), max(best.Patches, found.Patches), max(best.Deletes, found.Deletes)}
	}
	w.log("the API server's limit per second: %.0f creates, %.0f status patches, %.0f deletes", best.Creates, best.Patches, best.Deletes)
	return best, nil
}

// limitRound creates Machines, patches the status of each, and deletes them.
func (w *setup) limitRound(ctx context.Context, n int) (limit, error) {
	status := client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
		`{"status":{"currentStatus":{"phase":"Running","lastUpdateTime":%q},"lastOperation":{"description":"Machine joined","state":"Successful","type":"Create"}}}`,
		time.Now().UTC().Format(time.RFC3339)))
	var found limit
	for _, round := range []struct {
		rate *float64
		do   func(context.Context, *v1alpha1.Machine) error
	}{
		{&found.Creates, func(ctx context.Context, m *v1alpha1.Machine) error { return w.client.Create(ctx, m) }},
		{&found.Patches, func(ctx context.Context, m *v1alpha1.Machine) error { return w.client.Status().Patch(ctx, m, status) }},
		{&found.Deletes, func(ctx context.Context, m *v1alpha1.Machine) error { return w.client.Delete(ctx, m) }},
	} {
		began := time.Now()
		if err := inParallel(ctx, n, func(ctx context.Context, i int) error { return round.do(ctx, limitMachine(i)) }); err != nil {
			return limit{}, err
		}
		*round.rate = float64(n) / time.Since(began).Seconds()
	}
	return found, nil
}

func limitMachine(i int) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: limitNamespace, Name: fmt.Sprintf("machine-%d", i), Labels: map[string]string{"name": label}},
		Spec:       machineSpec(),
	}
}

// least returns the time that an API server at its limit needs for the writes among the requests. It ignores reads,
// because a good manager makes none.
func (l limit) least(methods map[string]int) time.Duration {
	var seconds float64
	for method, count := range methods {
		switch method {
		case "POST":
			seconds += float64(count) / l.Creates
		case "PUT", "PATCH", "APPLY":
			seconds += float64(count) / l.Patches
		case "DELETE", "DELETECOLLECTION":
			seconds += float64(count) / l.Deletes
		}
	}
	return time.Duration(seconds * float64(time.Second))
}
