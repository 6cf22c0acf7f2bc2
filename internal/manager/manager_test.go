package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
)

// get requests a page. After an error it returns no status.
func get(url string) (int, string) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// TestManager_FromStandbyToShutdown checks that a manager serves its pages on standby, works once the leases are
// free, and releases them when it exits, with only the roles that are shipped. It must not read anything on
// standby, so that it never acts on state that is older than its leadership.
func TestManager_FromStandbyToShutdown(t *testing.T) {
	e := newElection(t)
	mcmLeads, mcmDies := e.compete(e.mcm(both[0], "mcm"), steady)
	e.await(mcmLeads)
	port, err := e.env.ControlPlane.PortFor("manager", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	sets := &watchLog{plural: "/machinesets"}
	access := sets.on(e.env.UserWith(t, "config/rbac/control-role.yaml"))
	go func() {
		ended <- Run(ctx, Config{
			Control: access,
			Drivers: registry.Only(registry.AnyProvider, sim.New(sim.Config{})),
			Log:     testr.New(t),
			Settings: Settings{
				Namespace:       e.env.Namespace,
				ConcurrentSyncs: 5,
				Election:        Election{Enabled: true, LeaseDuration: time.Hour, RenewDeadline: 50 * time.Minute, RetryPeriod: 100 * time.Millisecond},
				Pages:           Pages{Address: "127.0.0.1", Port: port},
				MachineSettings: MachineSettings{CreationTimeout: time.Minute},
			},
		})
	}()
	g := gomega.NewWithT(t)
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	g.Eventually(func() string { _, body := get(base + "/healthz"); return body }).WithTimeout(env.WaitTimeout).Should(gomega.Equal("OK"))
	if status, body := get(base + "/metrics"); status != http.StatusOK || !strings.Contains(body, "process_start_time_seconds") {
		t.Errorf("a standby manager serves no metrics: %d", status)
	}
	g.Eventually(func() int { status, _ := get(base + "/readyz"); return status }).WithTimeout(env.WaitTimeout).Should(gomega.Equal(http.StatusOK))
	if got := e.holder(both[0]); got != "mcm" {
		t.Errorf("the lease is held by %q", got)
	}

	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: e.env.Namespace, Name: "m"}}
	machine.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "missing"}
	if err := e.env.Client.Create(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	sets.wantNone(t)
	mcmDies()
	e.expire(both[0], "mcm")
	g.Eventually(func(g gomega.Gomega) {
		g.Expect(e.env.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineCrashLoopBackOff))
		events := &corev1.EventList{}
		g.Expect(e.env.Client.List(t.Context(), events, client.InNamespace(e.env.Namespace))).To(gomega.Succeed())
		g.Expect(events.Items).NotTo(gomega.BeEmpty())
		g.Expect(events.Items[0].Source.Component).To(gomega.Equal("machine-controller"))
	}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())

	sets.wantConsistent(t)
	if _, body := get(base + "/metrics"); !strings.Contains(body, "\nmcm_workqueue_adds_total{name=\"machine\"}") || strings.Contains(body, "\nworkqueue_") {
		t.Error("the metrics of the work queues do not have exactly MCM's names")
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the manager returned %v", err)
		}
	case <-time.After(shutdown):
		t.Fatal("the manager does not end")
	}
	for _, name := range both {
		if got := e.holder(name); got != "" {
			t.Errorf("%s is still held by %q", name, got)
		}
	}
	if status, _ := get(base + "/healthz"); status != 0 {
		t.Error("a page is still served")
	}
}

// TestManager_ExitsWithoutLeadership checks that a manager exits when it sees that another process took its lease,
// for example after it was suspended. With client-go alone, it would continue until the renew deadline.
func TestManager_ExitsWithoutLeadership(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	ended := make(chan error, 1)
	go func() {
		ended <- Run(t.Context(), Config{
			Control: e.env.Admin,
			Drivers: registry.Only(registry.AnyProvider, sim.New(sim.Config{})),
			Log:     testr.New(t),
			Settings: Settings{
				Namespace:       e.env.Namespace,
				ConcurrentSyncs: 5,
				Election:        Election{Enabled: true, LeaseDuration: time.Hour, RenewDeadline: 50 * time.Minute, RetryPeriod: 100 * time.Millisecond},
				MachineSettings: MachineSettings{CreationTimeout: time.Minute},
			},
		})
	}()
	g := gomega.NewWithT(t)
	g.Eventually(func() string { return e.holder(both[1]) }).WithTimeout(env.WaitTimeout).ShouldNot(gomega.Equal("none"))
	// A renewal may happen between the read and the write.
	g.Eventually(func() error { return e.take(both[1], "other", 3600) }).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	select {
	case err := <-ended:
		if !errors.Is(err, errLeasesLost) {
			t.Errorf("the manager returned %v", err)
		}
	case <-time.After(env.WaitTimeout):
		t.Fatal("the manager does not end")
	}
	if got := e.holder(both[1]); got != "other" {
		t.Errorf("the lease is held by %q", got)
	}
}

// TestManager_StopsWithoutPermissions checks that a manager can be stopped although its caches never sync.
func TestManager_StopsWithoutPermissions(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	access, err := e.ControlPlane.UserConfig("nobody")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	sets := &watchLog{plural: "/machinesets"}
	go func() {
		ended <- Run(ctx, Config{
			Control: sets.on(access),
			Drivers: registry.Only(registry.AnyProvider, sim.New(sim.Config{})),
			Log:     testr.New(t),
			Settings: Settings{
				Namespace:       e.Namespace,
				ConcurrentSyncs: 5,
				MachineSettings: MachineSettings{CreationTimeout: time.Minute},
			},
		})
	}()
	gomega.NewWithT(t).Eventually(sets.all).WithTimeout(env.WaitTimeout).ShouldNot(gomega.BeEmpty())
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the manager returned %v", err)
		}
	case <-time.After(shutdown):
		t.Fatal("the manager does not end")
	}
}

// TestEvents_UseCoreGroup checks that events need no permissions in events.k8s.io, which the role does not
// grant.
func TestEvents_UseCoreGroup(t *testing.T) {
	var mu sync.Mutex
	var posted []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		posted = append(posted, r.Method+" "+r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body) // the client sees the failure
	}))
	defer server.Close()
	events, err := newEvents(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, env.NewScheme())
	if err != nil {
		t.Fatal(err)
	}
	defer events.shutdown()
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "shoot", Name: "m"}}
	events.recorder("machine-controller").Event(machine, corev1.EventTypeNormal, "Joined", "it did")
	gomega.NewWithT(t).Eventually(func() []string {
		mu.Lock()
		defer mu.Unlock()
		return posted
	}).WithTimeout(env.WaitTimeout).Should(gomega.Equal([]string{"POST /api/v1/namespaces/shoot/events"}))
}

// TestEvents_NoneIsDroppedDuringRollout checks that no event is dropped or merged with others.
func TestEvents_NoneIsDroppedDuringRollout(t *testing.T) {
	const steps = 60
	var posted, merged atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		posted.Add(1)
		if r.Method != http.MethodPost || bytes.Contains(body, []byte("combined")) {
			merged.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body) // the client sees the failure
	}))
	defer server.Close()
	events, err := newEvents(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, env.NewScheme())
	if err != nil {
		t.Fatal(err)
	}
	defer events.shutdown()
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shoot", Name: "pool"}}
	for i := range steps {
		events.recorder("machinedeployment-controller").Eventf(deployment, corev1.EventTypeNormal, "Scaled", "step %d", i)
	}
	gomega.NewWithT(t).Eventually(posted.Load).WithTimeout(env.WaitTimeout).Should(gomega.BeEquivalentTo(steps))
	if merged.Load() > 0 {
		t.Errorf("%d of %d events were merged with others", merged.Load(), steps)
	}
}

// TestLeases_UseSeparateConnection checks that leases and events share neither the rate limit nor the
// connection of other requests.
func TestLeases_UseSeparateConnection(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RemoteAddr) // the client sees the failure
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	work := &rest.Config{Host: server.URL, QPS: 100, Burst: 200, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	own := apart(work)
	connection := func(config *rest.Config) string {
		t.Helper()
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		from, _ := io.ReadAll(response.Body)
		return string(from)
	}
	if first, again, leases := connection(work), connection(rest.CopyConfig(work)), connection(own); first != again || first == leases {
		t.Errorf("other requests come from %s and %s, leases from %s", first, again, leases)
	}
	if own == work || own.Host != work.Host || own.QPS == work.QPS || own.QPS <= 0 {
		t.Errorf("leases use %+v", own)
	}
	if work.QPS != 100 || work.Burst != 200 {
		t.Errorf("the limits of other requests became %v and %v", work.QPS, work.Burst)
	}
}

// TestManager_PortInUse checks that a used port stops the manager with an error that the command line
// recognizes.
func TestManager_PortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	e := env.New(t)
	err = Run(t.Context(), Config{
		Control: e.Admin,
		Drivers: registry.Only(registry.AnyProvider, sim.New(sim.Config{})),
		Log:     testr.New(t),
		Settings: Settings{
			Namespace:       e.Namespace,
			ConcurrentSyncs: 1,
			Pages:           Pages{Address: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port},
		},
	})
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the manager returned %v, want an error about an address in use", err)
	}
}
