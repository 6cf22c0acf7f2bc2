package env

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// recorderAgent is the user agent of a Recorder's own requests, which no report contains.
const recorderAgent = "millwright-recorder"

// Recorder records the requests that one API server answers between Record and Stop.
type Recorder struct {
	t      testing.TB
	name   string
	client rest.Interface
	tail   *auditTail
	before Totals
	report *Report
}

// Record begins to record the requests to this cluster's API server, those of all
// clients and namespaces; Report.Where narrows them down afterwards. The requests
// are taken from the audit log and compared with the server's own count.
//
// What was answered before Record returns is not recorded.
func (c *Cluster) Record(t testing.TB) *Recorder {
	t.Helper()
	config := rest.CopyConfig(c.Admin)
	config.UserAgent = recorderAgent
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	r := &Recorder{t: t, name: c.Namespace, client: clientset.Discovery().RESTClient()}
	if err := r.begin(t.Context(), c.ControlPlane.AuditLogPath()); err != nil {
		t.Fatalf("beginning to record requests: %v", err)
	}
	t.Cleanup(func() { r.tail.file.Close() })
	return r
}

func (r *Recorder) begin(ctx context.Context, path string) error {
	var err error
	if r.tail, err = tailAudit(path); err != nil {
		return err
	}
	if _, err := r.readToMarker(ctx); err != nil {
		return err
	}
	r.before, err = Scrape(ctx, r.client)
	return err
}

// Stop ends the recording and returns what was recorded: every request that was
// answered before the call. A second call returns the same.
func (r *Recorder) Stop() *Report {
	r.t.Helper()
	if r.report != nil {
		return r.report
	}
	// Not the test's context: a report is also wanted in a cleanup.
	ctx, cancel := context.WithTimeout(context.Background(), markerTimeout)
	defer cancel()
	events, err := r.readToMarker(ctx)
	if err != nil {
		r.t.Fatalf("ending to record requests: %v", err)
	}
	after, err := Scrape(ctx, r.client)
	if err != nil {
		r.t.Fatalf("ending to record requests: %v", err)
	}
	r.report = newReport(events)
	r.report.compare(r.before, after)
	return r.report
}

// Report is Stop, for readers who have stopped before.
func (r *Recorder) Report() *Report { return r.Stop() }

const (
	markerTimeout = 30 * time.Second
	tailInterval  = 10 * time.Millisecond
)

// readToMarker makes a request that can be recognised and reads the log until it
// is in there, so that everything that was answered before is read too.
func (r *Recorder) readToMarker(ctx context.Context) ([]Request, error) {
	ctx, cancel := context.WithTimeout(ctx, markerTimeout)
	defer cancel()
	uri := "/version?recorder=" + r.name + "-" + rand.String(10)
	if err := r.client.Get().RequestURI(uri).Do(ctx).Error(); err != nil {
		return nil, err
	}
	again := time.NewTicker(tailInterval)
	defer again.Stop()
	var requests []Request
	for {
		event, err := r.tail.next()
		switch {
		case err != nil:
			return nil, err
		case event == nil: // at the end of the log
			select {
			case <-again.C:
			case <-ctx.Done():
				return nil, errors.Join(fmt.Errorf("the audit log does not show the request %s", uri), ctx.Err())
			}
		case event.RequestURI == uri:
			return requests, nil
		default:
			if request, counts := event.request(); counts && request.UserAgent != recorderAgent {
				requests = append(requests, request)
			}
		}
	}
}

// newReport puts the requests in the order in which they were received; the log is
// in the order of the answers.
func newReport(requests []Request) *Report {
	slices.SortStableFunc(requests, func(a, b Request) int { return a.Time.Compare(b.Time) })
	return &Report{Requests: requests}
}
