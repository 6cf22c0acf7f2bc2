package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/golden"
)

// pictureActions returns the actions of the command for the buttons in pictures. They have no effect.
func pictureActions() []Action {
	var all []Action
	for _, of := range [][3]string{
		{"pool", "scale", "Scale"}, {"pool", "pause", "Pause"}, {"pool", "resume", "Resume"}, {"pool", "restart", "Replace all"}, {"pool", "undo", "Roll back"},
		{"machine", "preserve", "Preserve"}, {"machine", "release", "Release"}, {"vm", "migrate", "Migrate"}, {"vm", "reset", "Reset"},
	} {
		all = append(all, Action{Kind: of[0], Name: of[1], Title: of[2], Command: func(Request) []string { return nil }})
	}
	return all
}

// pictureMetrics returns the metrics of a manager that started at the given time and has replaced machines since.
func pictureMetrics(begin time.Time) Metrics {
	minute := time.Since(begin).Minutes()
	wave := func(period, phase float64) float64 { return 1 + math.Sin(2*math.Pi*(minute/period+phase)) }
	var text strings.Builder
	gauge := func(of string, value float64) { fmt.Fprintf(&text, "%s %.0f\n", of, value) }
	for i, pool := range []string{"batch", "database", "gpu", "workers"} {
		labels := fmt.Sprintf("{namespace=%q,machine_deployment=%q}", "machines", pool)
		gauge("mcm_machine_join_duration_seconds"+labels, 40+15*float64(i)+12*math.Floor(3*wave(17+5*float64(i), 0.2*float64(i))))
		gauge("mcm_machine_drain_duration_seconds"+labels, 20+30*float64(i%3)+9*math.Floor(4*wave(23-3*float64(i), 0.3*float64(i))))
		gauge("mcm_machine_delete_duration_seconds"+labels, 9+4*float64(i)+3*math.Floor(3*wave(13+4*float64(i), 0.1*float64(i))))
	}
	counter := func(of string, perMinute, period float64) { // the integral of a wave
		gauge(of, perMinute*(minute-period/(2*math.Pi)*math.Cos(2*math.Pi*minute/period)+period))
	}
	text.WriteString("# TYPE mcm_cloud_api_driver_request_duration_seconds histogram\n")
	counter("mcm_cloud_api_driver_request_duration_seconds_count", 90, 35)
	text.WriteString("# TYPE mcm_cloud_api_driver_requests_failed_total counter\n")
	counter(`mcm_cloud_api_driver_requests_failed_total{error_code="8"}`, 25, 40)
	counter(`mcm_cloud_api_driver_requests_failed_total{error_code="14"}`, 9, 25)
	text.WriteString("# TYPE rest_client_requests_total counter\n")
	counter(`rest_client_requests_total{code="200"}`, 340, 30)
	counter(`rest_client_requests_total{code="201"}`, 90, 20)
	counter(`rest_client_requests_total{code="409"}`, 8, 15)
	for i, queue := range []string{"machine", "machinedeployment", "machineset"} {
		gauge(fmt.Sprintf("mcm_workqueue_depth{name=%q}", queue), math.Floor(float64(4-i)*wave(11+float64(i), 0.4*float64(i))))
	}
	return Metrics{Source: "Pod millwright-system/millwright-0", Texts: []io.ReadCloser{io.NopCloser(strings.NewReader(text.String()))}}
}

// servePictures serves a page with fixed objects, sends the server, and closes it when seen is closed. It runs in a bubble, whose
// clock stops as soon as the page is served, because goroutines then wait for the network and for a channel from outside.
func servePictures(t *testing.T, served chan<- *Server, seen <-chan struct{}) {
	time.Sleep(14*time.Hour + 7*time.Minute) // the clock of a bubble begins at midnight
	begin := time.Now()
	objects := newAlbum(begin.Add(metricsHistory))
	cluster := newCluster(t, objects.control...)
	t.Cleanup(func() { cluster.refuse(func(client.ObjectList, string) error { return context.Canceled }) })
	options := Options{
		Control: cluster.WithWatch, Target: newFakeClient(t, objects.target...), Actions: pictureActions(), Cluster: "https://seed-1.example.com",
		Metrics: func(context.Context) (Metrics, error) { return pictureMetrics(begin), nil },
		Console: func(context.Context, types.NamespacedName) (*websocket.Conn, error) { return nil, errors.New("none") },
	}
	s := serveAfter(t, options, func(s *Server) {
		s.history.open() // like an open tab, which makes the server read metrics
		time.Sleep(metricsHistory)
		synctest.Wait()
	})
	served <- s
	<-seen
}

// TestPage_LooksAsInPictures compares pages with golden pictures, including those in the documentation. The objects, the clock,
// the fonts and the sizes are fixed. "make pictures" updates the pictures.
func TestPage_LooksAsInPictures(t *testing.T) {
	p := browser.Open(t)
	p.StopClock()
	// The browser runs outside the bubble, where time passes.
	served, seen, closed := make(chan *Server), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(closed)
		defer close(served)
		synctest.Test(t, func(t *testing.T) { servePictures(t, served, seen) })
	}()
	t.Cleanup(func() {
		close(seen)
		<-closed
	})
	s := <-served
	if s == nil {
		t.Fatal("the page is not served")
	}
	p.Navigate(s.URL())
	p.Await(`document.querySelectorAll(".pool").length === 4`)
	const docs, own = "../../docs/images/ui-", "testdata/ui-"
	for _, view := range []struct {
		file, hash    string
		width, height int
		dark          bool
		wait          string
	}{
		{docs + "rollout", "#/pool/machines/workers", 1280, 860, false, `document.querySelector(".conclusion") && document.querySelectorAll(".events li").length === 6 && document.querySelectorAll(".tile").length === 7`},
		{docs + "machine", "#/machine/machines/database-6d9b5-q8wzn", 1280, 860, false, `document.querySelector(".conclusion") && document.querySelectorAll(".events li").length === 2 && document.querySelector(".life") && document.querySelector(".held")`},
		{docs + "metrics", "#/metrics", 1280, 900, false, `document.querySelectorAll(".plot").length === 6 && document.querySelectorAll(".plot svg path:not(.grid)").length > 16`},
		{own + "pools", "#/", 1280, 940, false, `document.querySelectorAll(".tile").length === 75`},
		{own + "vm", "#/vm/machines/database-8c4f2-5hkzt", 1280, 460, false, `document.querySelector(".facts") && document.querySelector("progress")`},
		{own + "phone", "#/", 390, 844, false, `document.querySelectorAll(".tile").length === 75`},
		{own + "dark", "#/pool/machines/database", 1280, 860, true, `document.querySelector(".conclusion") && document.querySelector(".events li") && document.querySelectorAll(".tile").length === 5`},
	} {
		p.Resize(view.width, view.height, view.dark)
		// Each view begins with a new document, so that nothing remains from the previous view.
		p.Navigate("about:blank#" + view.hash)
		p.Navigate("http://" + s.options.Host + "/" + view.hash)
		p.Await(`document.querySelector(".link.open") && ` + view.wait)
		golden.Picture(t, view.file+".png", p.Picture())
	}
	withoutProblems(t, p)
}
