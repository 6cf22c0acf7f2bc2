package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
)

// serve serves the page for a browser until the test is complete.
func serve(t *testing.T, c client.WithWatch, actions ...Action) *Server {
	t.Helper()
	return serveWith(t, Options{Control: c, Target: c, Actions: actions})
}

// serveWith is like serve, with other options.
func serveWith(t *testing.T, options Options) *Server {
	t.Helper()
	return serveAfter(t, options, func(*Server) {})
}

// serveAfter is like serveWith, but the page is served after prepare has returned.
func serveAfter(t *testing.T, options Options, prepare func(s *Server)) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	options.Host = net.JoinHostPort(NewHostName(), port)
	options.Cluster = cmp.Or(options.Cluster, "https://api.example.com")
	s, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	prepare(s)
	page := httptest.NewUnstartedServer(s)
	page.Listener.Close()
	page.Listener = listener
	page.Start()
	t.Cleanup(func() {
		cancel()
		<-done
		page.CloseClientConnections()
		page.Close()
	})
	return s
}

// withoutProblems checks that the page threw no exceptions and violated no policy.
func withoutProblems(t *testing.T, p *browser.Page) {
	t.Helper()
	for _, problem := range p.Problems() {
		t.Errorf("the page reports: %s", problem)
	}
}

// hostile is a text that runs a script if it is used as HTML, and changes what follows it if it is not limited.
const hostile = `<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>"'><svg onload=window.pwned=3>` + "\u202e\x1b[31m javascript:pwned=4"

// TestPage_ShowsHostileTextsAsText checks that texts of the cluster run no scripts, in a real browser.
func TestPage_ShowsHostileTextsAsText(t *testing.T) {
	objects := onePool()
	set, machine := objects[1].(*v1alpha1.MachineSet), objects[3].(*v1alpha1.Machine)
	objects[0].(*v1alpha1.MachineDeployment).Spec.Template.Spec.Class.Name = hostile
	set.Spec.Template.Spec.Class.Name = hostile
	set.Annotations["kubernetes.io/change-cause"] = hostile
	machine.Spec.Class.Name, machine.Spec.ProviderID = hostile, "cloud:///"+hostile
	machine.Labels = map[string]string{"pool": "a", v1alpha1.NodeLabelKey: hostile}
	machine.Status.LastOperation = v1alpha1.LastOperation{Description: hostile, State: v1alpha1.MachineStateFailed, Type: "Create", ErrorCode: hostile}
	objects = append(objects, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "n", Name: "event"},
		InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Machine", Namespace: "n", Name: machine.Name},
		Reason:         hostile, Message: hostile, Type: corev1.EventTypeWarning, LastTimestamp: metav1.Now(),
	})
	capi := capiObject(t, "v1beta2", "Machine", "capi", nil, `{spec: {infrastructureRef: {apiGroup: infrastructure.millwright.dev, name: x}}}`)
	if err := errors.Join(
		unstructured.SetNestedField(capi.Object, hostile, "spec", "version"), unstructured.SetNestedField(capi.Object, hostile, "status", "phase"),
		unstructured.SetNestedSlice(capi.Object, []any{map[string]any{"type": hostile, "status": "False", "reason": hostile, "message": hostile}}, "status", "conditions"),
	); err != nil {
		t.Fatal(err)
	}
	objects = append(objects, capi)
	c := newFakeClient(t, objects...)
	p := browser.Open(t)
	p.Navigate(serve(t, c).URL())
	p.Await(`document.querySelectorAll(".tile").length === 3`)
	for _, view := range []struct{ hash, wait string }{
		{"#/machine/n/" + machine.Name, `document.querySelector(".conclusion") && document.querySelector(".events li") && document.querySelector(".life")`},
		{"#/capi-machine/n/capi", `document.querySelector(".conclusion") && document.querySelector(".findings").innerText.includes("onerror") && document.querySelector("table").innerText.includes("onerror")`},
		{"#/pool/n/pool", `document.querySelector(".conclusion") && document.querySelector(".events li") && document.querySelector(".plain")`},
		{"#/machine/n/" + strings.ReplaceAll(hostile, "/", ""), `document.querySelector("h1")`},
		{"#/vm/%00/%E0%A4%A", `document.querySelector("h1")`},
		{"#/" + hostile, `document.querySelector(".empty")`},
		{"#/", `document.querySelectorAll(".tile").length === 3`},
	} {
		browser.Evaluate[any](p, fmt.Sprintf("location.hash = %q", view.hash))
		p.Await(view.wait)
		if view.hash == "#/machine/n/"+machine.Name {
			browser.Evaluate[any](p, `document.querySelector(".yaml").open = true`)
			p.Await(`document.querySelector(".yaml pre")?.innerText.includes("onerror")`)
			if n := browser.Evaluate[int](p, `document.querySelectorAll("main img, main script, main svg").length`); n > 0 {
				t.Errorf("%d elements come from texts", n)
			}
		}
	}
	if pwned := browser.Evaluate[string](p, `String(window.pwned)`); pwned != "undefined" {
		t.Errorf("a text ran as a script: %s", pwned)
	}
	// Without the script that shows texts as text, the policy of the page would still prevent HTML from strings.
	if result := browser.Evaluate[string](p, `(() => { try { document.body.innerHTML = "<b>x</b>"; return "assigned" } catch (e) { return e.name } })()`); result != "TypeError" {
		t.Errorf("HTML from a string: %s", result)
	}
	// The browser reports violations of the policy by the attempt above, and by requests for favicons of no page.
	for _, problem := range p.Problems() {
		if !strings.Contains(problem, "TrustedHTML") {
			t.Errorf("the page reports: %s", problem)
		}
	}

	// An object that is deleted while its page is open.
	browser.Evaluate[any](p, fmt.Sprintf("location.hash = %q", "#/pool/n/pool"))
	p.Await(`document.querySelector(".head .actions")`)
	if err := c.Delete(t.Context(), objects[0]); err != nil {
		t.Fatal(err)
	}
	p.Await(`document.body.innerText.includes("This pool does not exist")`)
}

// TestPage_RejectsOtherSites checks with a real browser that the link works once, and that a page of another origin can
// neither read nor change anything with the cookie of the session.
func TestPage_RejectsOtherSites(t *testing.T) {
	did := false
	link := serve(t, newFakeClient(t, onePool()...), Action{
		Name: "pause", Kind: "pool", Command: func(Request) []string { return []string{"pause"} },
		Do: func(context.Context, Request) (string, error) { did = true; return "paused", nil },
	}).URL()
	ours, _, _ := strings.Cut(link, "/?")
	p := browser.Open(t)
	p.Navigate(link)
	p.Await(`document.querySelectorAll(".tile").length === 2 && location.search === ""`)
	if cookie := browser.Evaluate[string](p, `document.cookie`); cookie != "" {
		t.Errorf("a script can read the cookie: %q", cookie)
	}
	withoutProblems(t, p)

	_, port, _ := net.SplitHostPort(strings.TrimPrefix(ours, "http://"))
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>other</title>")
	}))
	t.Cleanup(other.Close)
	_, otherPort, _ := net.SplitHostPort(strings.TrimPrefix(other.URL, "http://"))
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(ours, "http://"))
	// The second one is the same site for cookies, because only its port differs.
	for _, origin := range []string{other.URL, "http://" + net.JoinHostPort(host, otherPort)} {
		p.Navigate(origin)
		p.Await(`document.title === "other"`)
		for name, script := range map[string]string{
			"read":      `fetch("` + ours + `/api/about", {credentials: "include"}).then((r) => r.text())`,
			"change":    `fetch("` + ours + `/api/do", {method: "POST", mode: "no-cors", credentials: "include", body: '{"action":"pause","namespace":"n","name":"pool"}'}).then((r) => "status " + r.status + r.type)`,
			"WebSocket": `new Promise((done) => { const s = new WebSocket("ws` + strings.TrimPrefix(ours, "http") + `/api/stream"); s.onmessage = (m) => done("got " + m.data); s.onerror = () => done("") })`,
			"script":    `new Promise((done) => { const s = document.createElement("script"); s.src = "` + ours + `/main.js"; s.onload = () => done("loaded"); s.onerror = () => done(""); document.head.append(s) })`,
		} {
			got := browser.Evaluate[string](p, script+`.catch((e) => "")`)
			if got != "" && got != "status 0opaque" { // the latter is a response that the page cannot read
				t.Errorf("%s from %s: %s", name, origin, got)
			}
		}
	}
	if did {
		t.Error("another site performed an action")
	}

	p.Navigate("http://127.0.0.1:" + port + "/")
	p.Await(`document.body.innerText.includes("unknown host name")`)
	p.Navigate(link)
	p.Await(`document.body.innerText.includes("This link was already used")`)
}

// TestPage_ReportsMissingPermissions checks that each part that the user may not read is marked, and that nothing is blank.
func TestPage_ReportsMissingPermissions(t *testing.T) {
	c := newCluster(t, onePool()...)
	c.refused = func(list client.ObjectList, _ string) error {
		if name := nameOf(list); name == "Machine" || name == "VirtualMachine" || name == "" {
			return errForbidden
		}
		return nil
	}
	p := browser.Open(t)
	p.Navigate(serve(t, c.WithWatch).URL())
	p.Await(`document.querySelector(".pool") && document.body.innerText.includes("You have no permission to list Machines.")`)
	for hash, text := range map[string]string{
		"#/pool/n/pool": "You have no permission to list Events.",
		"#/vms":         "You have no permission to list VirtualMachines.",
		"#/hosts":       "You have no permission to list Nodes.",
	} {
		browser.Evaluate[any](p, fmt.Sprintf("location.hash = %q", hash))
		p.Await(fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
	}
	withoutProblems(t, p)
}

// TestPage_DrawsMetrics checks that the page draws the metrics, shows hostile labels as text, and shows why there are none.
func TestPage_DrawsMetrics(t *testing.T) {
	var readable atomic.Bool
	c := newFakeClient(t)
	p := browser.Open(t)
	s := serveWith(t, Options{Control: c, Target: c, Metrics: func(context.Context) (Metrics, error) {
		if !readable.Load() {
			return Metrics{}, errors.New("no permission " + hostile)
		}
		label := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(hostile)
		return metricsOf("mcm_workqueue_depth{name=\"" + label + "\"} 7\nmcm_machine_drain_duration_seconds{namespace=\"n\",machine_deployment=\"pool\"} 30\n"), nil
	}})
	p.Navigate(s.URL())
	p.Await(`document.querySelector(".empty")`)
	browser.Evaluate[any](p, `location.hash = "#/metrics"`)
	p.Await(`document.querySelector(".notes").innerText.includes("cannot be read") && document.querySelector(".notes").innerText.includes("onerror")`)
	readable.Store(true)
	p.Await(`document.querySelectorAll(".plot").length === 6 && document.querySelectorAll(".plot svg path:not(.grid)").length === 2`)
	p.Await(`document.querySelector("main").innerText.includes("n/pool 30 s") && document.querySelector("main").innerText.includes("<script>")`)
	if n := browser.Evaluate[int](p, `document.querySelectorAll("main img, main script").length`); n > 0 {
		t.Errorf("%d elements come from texts", n)
	}
	p.Screenshot(t, "metrics")
	withoutProblems(t, p)
}

// fiveThousand returns a pool of 5,000 Machines.
func fiveThousand() []client.Object {
	objects := onePool()[:2]
	objects[0].(*v1alpha1.MachineDeployment).Spec.Replicas = 5000
	objects[1].(*v1alpha1.MachineSet).Spec.Replicas = 5000
	like := onePool()[2].(*v1alpha1.Machine)
	for i := range 5000 {
		machine := like.DeepCopy()
		machine.Name = fmt.Sprintf("pool-1-%05d", i)
		objects = append(objects, machine)
	}
	return objects
}

// TestPage_Shows5000Machines checks that the page shows and updates 5,000 machines, and logs how fast that is. Times depend
// on the machine, so they are not limited.
func TestPage_Shows5000Machines(t *testing.T) {
	p := browser.Open(t)
	s := serve(t, newFakeClient(t, fiveThousand()...))
	p.Navigate(s.URL())
	p.Await(`document.querySelectorAll(".tile").length === 5000`)
	paint := browser.Evaluate[float64](p, `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1`)
	t.Logf("first contentful paint after %.0f ms", paint)

	// A page that is taller than the window, so that it scrolls.
	p.Resize(700, 400, false)
	p.Await(`document.documentElement.scrollHeight > 1500`)
	frames := browser.Evaluate[float64](p, `new Promise((done) => {
		let frames = 0;
		const begin = performance.now(), height = document.documentElement.scrollHeight - innerHeight;
		const step = (now) => {
			frames++;
			scrollTo(0, height * Math.abs(Math.sin((now - begin) / 500)));
			if (now - begin < 3000) requestAnimationFrame(step); else done(1000 * frames / (now - begin));
		};
		requestAnimationFrame(step);
	})`)
	t.Logf("%.0f frames per second while scrolling", frames)

	begin := browser.Evaluate[float64](p, `performance.now()`)
	for _, machine := range objectsOf[*v1alpha1.Machine](s.model.sources["Machine"], "") {
		row := machineRow(machine)
		row.Phase = string(v1alpha1.MachineFailed)
		s.model.hub.set(row.ID, row)
	}
	p.Await(`document.querySelectorAll(".tile.bad").length === 5000`)
	t.Logf("5,000 machines failed within %.0f ms", browser.Evaluate[float64](p, `performance.now()`)-begin)
	withoutProblems(t, p)
}
