package env

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is a list of requests, ready to be counted and shown.
type Report struct {
	// Requests are in the order in which they were received.
	Requests []Request
	// Unaccounted tells by resource how many more requests the API server counted
	// than were recorded (negative: fewer), watches aside. Only differences are in
	// it. A few may be requests that were being answered when the recording began
	// or ended; it is nil in reports made by Where and Join.
	Unaccounted map[string]int
	// Restarted tells that the API server was started again meanwhile, so that
	// there is no count of its own to compare with.
	Restarted bool
}

// Filter says which requests are meant: those that fit all fields that are set. The
// zero value fits every request.
type Filter struct {
	Kind Kind
	Verb string
	// Group is only looked at where Resource is set, and "" then fits every group.
	Group string
	// Resource is the plural name; "pods" does not fit "pods/eviction".
	Resource string
	// Namespace is the object's; requests for cluster-wide objects and lists of all
	// namespaces do not fit one.
	Namespace string
	Name      string
	User      string
	// UserAgent is the beginning of the user agent.
	UserAgent string
	// After and Before limit the time at which the request was received: After ≤
	// time < Before.
	After, Before time.Time
}

func (f Filter) fits(r Request) bool {
	equal := func(wanted, actual string) bool { return wanted == "" || wanted == actual }
	return equal(string(f.Kind), string(r.Kind())) &&
		equal(f.Verb, r.Verb) && f.fitsObject(r) && equal(f.User, r.User) &&
		strings.HasPrefix(r.UserAgent, f.UserAgent) && f.fitsTime(r.Time)
}

func (f Filter) fitsObject(r Request) bool {
	return (f.Resource == "" || f.Resource == r.Resource && (f.Group == "" || f.Group == r.Group)) &&
		(f.Namespace == "" || f.Namespace == r.Namespace) && (f.Name == "" || f.Name == r.Name)
}

func (f Filter) fitsTime(t time.Time) bool {
	return (f.After.IsZero() || !t.Before(f.After)) && (f.Before.IsZero() || t.Before(f.Before))
}

// Where returns a report on the requests that fit one of the filters.
func (r *Report) Where(filters ...Filter) *Report {
	return &Report{Restarted: r.Restarted, Requests: slices.Collect(func(yield func(Request) bool) {
		for _, request := range r.Requests {
			if slices.ContainsFunc(filters, func(f Filter) bool { return f.fits(request) }) && !yield(request) {
				return
			}
		}
	})}
}

// Join returns a report on the requests of several, such as those to the control
// and to the target cluster.
func Join(reports ...*Report) *Report {
	joined := &Report{}
	var requests []Request
	for _, report := range reports {
		requests = append(requests, report.Requests...)
		joined.Restarted = joined.Restarted || report.Restarted
	}
	joined.Requests = newReport(requests).Requests
	return joined
}

// Count returns how many requests fit the filter, of whichever kind.
func (r *Report) Count(filter Filter) int { return len(r.Where(filter).Requests) }

// Total returns the number of requests of kind Work: without watches, leases,
// events, discovery, and the API server's own.
func (r *Report) Total() int { return r.Count(Filter{Kind: Work}) }

// PerN returns Total divided by n, such as the requests per machine.
func (r *Report) PerN(n int) float64 { return float64(r.Total()) / float64(n) }

// compare fills Unaccounted from what the API server counted.
func (r *Report) compare(before, after Totals) {
	if before.Started != after.Started {
		r.Restarted = true
		return
	}
	difference, had := after.perResource(), before.perResource()
	for key := range difference {
		difference[key] -= had[key]
	}
	for _, request := range r.Requests {
		// What authorisation refused has not reached the place where it is counted.
		if request.Resource != "" && request.Verb != "watch" && !request.Refused {
			difference[totalsKey(request.Group, request.Resource)]--
		}
	}
	maps.DeleteFunc(difference, func(_ string, count int) bool { return count == 0 })
	r.Unaccounted = difference
}

// line is one row of the table.
type line struct {
	kind                  Kind
	agent, verb, resource string
}

// Table returns a text with one row for each kind, user agent, verb and resource,
// and the sums by kind.
func (r *Report) Table() string {
	rows, sums := map[line]int{}, map[Kind]int{}
	for _, request := range r.Requests {
		kind := request.Kind()
		sums[kind]++
		if kind != Internal { // one line is enough for those
			rows[line{kind, request.Agent(), request.Verb, describe(request)}]++
		}
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KIND\tCOUNT\tVERB\tRESOURCE\tUSER AGENT") // writes to memory
	for _, row := range sortedRows(rows) {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", row.kind, rows[row], row.verb, row.resource, row.agent)
	}
	for _, kind := range kinds {
		fmt.Fprintf(table, "%s\t%d\tin total\n", kind, sums[kind])
	}
	table.Flush()
	text.WriteString(r.remark())
	return text.String()
}

var kinds = []Kind{Work, Event, Lease, Watch, Discovery, Internal}

func sortedRows(rows map[line]int) []line {
	return slices.SortedFunc(maps.Keys(rows), func(a, b line) int {
		return cmp.Or(
			cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)),
			cmp.Compare(rows[b], rows[a]),
			cmp.Compare(a.resource, b.resource), cmp.Compare(a.verb, b.verb), cmp.Compare(a.agent, b.agent),
		)
	})
}

func describe(request Request) string {
	if request.Resource == "" {
		path, _, _ := strings.Cut(request.URI, "?")
		return path
	}
	return totalsKey(request.Group, request.Resource)
}

// remark says how the count compares with the API server's.
func (r *Report) remark() string {
	switch {
	case r.Restarted:
		return "the API server was started again meanwhile; its own count cannot be compared\n"
	case r.Unaccounted == nil:
		return ""
	case len(r.Unaccounted) == 0:
		return "agrees with the API server's own count\n"
	}
	return fmt.Sprintf("the API server counted otherwise (difference by resource): %v\n", r.Unaccounted)
}
