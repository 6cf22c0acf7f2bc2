package service

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// migrating is a service with the VM "vm", which migrates from Pod vm-1 to vm-2.
type migrating struct {
	*testing.T
	*Service
	authority *identity.Authority
	key       types.NamespacedName
	source    *vmpb.HypervisorID
}

func newMigrating(t *testing.T) *migrating {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	vm := fixture.VirtualMachine()
	vm.Annotations = map[string]string{v1alpha1.AnnotationMigrate: "vm-1"}
	vm.Status.VirtualMachineAuthority = v1alpha1.VirtualMachineAuthority{ActivePodName: "vm-1", ActivePodUID: "uid", ActiveRunID: "1"}
	vm.Status.Migration = &v1alpha1.VirtualMachineMigration{Phase: v1alpha1.MigrationPreparing, SourcePodName: "vm-1", TargetPodName: "vm-2"}
	source := fixture.OwnedBy(vm, fixture.Named("vm-1", fixture.Pod()))
	cluster := fakeclient.NewBuilder(scheme).WithObjects(vm, source).WithStatusSubresource(vm).Build()
	m := &migrating{T: t, key: client.ObjectKeyFromObject(vm)}
	m.source = m.process("vm-1")
	var err error
	if m.authority, err = identity.NewAuthority(time.Now()); err != nil {
		t.Fatal(err)
	}
	m.Service = New(Options{
		Registry:  &authority.Registry{Client: cluster, APIReader: cluster, Clock: clock.RealClock{}},
		Authority: m.authority, Enqueue: func(types.NamespacedName, time.Duration) {},
	})
	m.store(m.key, &vmpb.ReportStateRequest{Us: m.source, State: vmpb.ReportStateRequest_STATE_RUNNING, CanMigrate: true})
	return m
}

func (m *migrating) process(pod string) *vmpb.HypervisorID {
	return &vmpb.HypervisorID{Namespace: m.key.Namespace, VmName: m.key.Name, PodName: pod, RunId: 1}
}

// listen serves health checks with the certificate of a Pod, and returns the endpoint.
func (m *migrating) listen(pod string, status healthpb.HealthCheckResponse_ServingStatus) string {
	m.Helper()
	p := &port{T: m.T, authority: m.authority}
	certificate := p.certificate(identity.Peer{Namespace: m.key.Namespace, VM: m.key.Name, Pod: pod})
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAnyClientCert})))
	healthServer := health.NewServer()
	healthServer.SetServingStatus(vmpb.Hypervisor_ServiceDesc.ServiceName, status)
	healthpb.RegisterHealthServer(server, healthServer)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	m.Cleanup(server.Stop)
	return listener.Addr().String()
}

// TestEnsureMigrationTarget_WaitsForHealth checks that a source gets its target only when the services of the target
// respond with the certificate of the target. Before that, the target cannot receive the guest.
func TestEnsureMigrationTarget_WaitsForHealth(t *testing.T) {
	for name, test := range map[string]struct {
		endpoint func(*migrating) string
		pod      string // the Pod that reports
		want     bool
	}{
		"serving":             {func(m *migrating) string { return m.listen("vm-2", healthpb.HealthCheckResponse_SERVING) }, "vm-2", true},
		"not serving yet":     {func(m *migrating) string { return m.listen("vm-2", healthpb.HealthCheckResponse_NOT_SERVING) }, "vm-2", false},
		"another certificate": {func(m *migrating) string { return m.listen("vm-3", healthpb.HealthCheckResponse_SERVING) }, "vm-2", false},
		"nothing listens":     {func(*migrating) string { return "127.0.0.1:1" }, "vm-2", false},
		"no endpoint yet":     {func(*migrating) string { return "" }, "vm-2", false},
		"another target":      {func(m *migrating) string { return m.listen("vm-3", healthpb.HealthCheckResponse_SERVING) }, "vm-3", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMigrating(t)
			endpoint := test.endpoint(m)
			m.targets[m.key] = &vmpb.ReportStateRequest{Us: m.process(test.pod), State: vmpb.ReportStateRequest_STATE_INCOMING, Endpoint: endpoint}
			w := &wait{Service: m.Service, us: m.source, vm: m.key, began: time.Now()}
			got, _, err := w.try(t.Context())
			if err != nil || (got != nil) != test.want {
				t.Fatalf("the response is %v, %v", got, err)
			}
			if got != nil && (got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE || got.GetTargetEndpoint() != endpoint || got.GetTargetPod() != "vm-2") {
				t.Errorf("the response is %v", got)
			}
		})
	}
}

// TestEnsureMigrationTarget_IsRefusedInTime checks that a source whose host stops it waits for a target only as long as enough
// time remains for the copy and a shutdown, although the VM does not change in the meantime.
func TestEnsureMigrationTarget_IsRefusedInTime(t *testing.T) {
	m := newMigrating(t)
	m.Registry.Migration.HostShutdown = 90 * time.Second // a shutdown needs 30 s of it, and half of the rest is for the copy
	m.Refused = func(context.Context, types.NamespacedName, string) {}
	w := &wait{Service: m.Service, us: m.source, vm: m.key, began: time.Now(), stopping: 10 * time.Second}
	got, pause, err := w.try(t.Context())
	if got != nil || pause <= 0 || pause > 21*time.Second || err != nil {
		t.Fatalf("at first: %v, %v, %v", got, pause, err)
	}
	w.began = w.began.Add(-pause)
	if got, _, err := w.try(t.Context()); got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN || err != nil {
		t.Errorf("after this time: %v, %v", got, err)
	}
}

// TestEnsureMigrationTarget_WaitsForTheReport checks that a source that has not reported yet is not shut down
// immediately, and that it does not wait forever.
func TestEnsureMigrationTarget_WaitsForTheReport(t *testing.T) {
	m := newMigrating(t)
	refused := ""
	m.Refused = func(_ context.Context, _ types.NamespacedName, why string) { refused = why }
	delete(m.reports, m.key)
	w := &wait{Service: m.Service, us: m.source, vm: m.key, began: time.Now()}
	if got, pause, err := w.try(t.Context()); got != nil || pause <= 0 || err != nil {
		t.Errorf("at first: %v, %v, %v", got, pause, err)
	}
	w.us = m.process("vm-9")
	if _, _, err := w.try(t.Context()); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another Pod: %v", err)
	}
	w.us, w.began = m.source, time.Now().Add(-reportTimeout)
	if got, _, err := w.try(t.Context()); got.GetAction() != vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN || err != nil || refused == "" {
		t.Errorf("after the timeout: %v, %v, refused because %q", got, err, refused)
	}
}

// TestReport_Endpoints checks that only IP addresses are accepted as endpoints. Host names would be resolved, and a
// gRPC scheme could refer to a socket on this host.
func TestReport_Endpoints(t *testing.T) {
	m := newMigrating(t)
	for endpoint, want := range map[string]codes.Code{"10.0.0.1:1": codes.OK, "": codes.OK, "example.org:1": codes.InvalidArgument, "unix:///run/x": codes.InvalidArgument} {
		report := &vmpb.ReportStateRequest{Us: m.process("vm-2"), State: vmpb.ReportStateRequest_STATE_INCOMING, Endpoint: endpoint}
		if _, err := m.reportIncoming(t.Context(), m.key, report); status.Code(err) != want {
			t.Errorf("a target at %q: %v", endpoint, err)
		}
		report = &vmpb.ReportStateRequest{Us: m.process("vm-disks"), State: vmpb.ReportStateRequest_STATE_PREPARING, Endpoint: endpoint}
		if _, err := m.reportServer(m.key, report); status.Code(err) != want {
			t.Errorf("a disk server at %q: %v", endpoint, err)
		}
	}
	serving := &vmpb.ReportStateRequest{Us: m.process("vm-disks"), State: vmpb.ReportStateRequest_STATE_RUNNING}
	if _, err := m.reportServer(m.key, serving); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a disk server without an endpoint: %v", err)
	}
}

// TestReportIncoming checks that only reports of a process in the target's Pod are accepted, and that an older report
// does not replace a newer one of the same process.
func TestReportIncoming(t *testing.T) {
	m := newMigrating(t)
	report := func(pod, endpoint string, sequence uint64) error {
		_, err := m.reportIncoming(t.Context(), m.key, &vmpb.ReportStateRequest{
			Us: m.process(pod), State: vmpb.ReportStateRequest_STATE_INCOMING, Endpoint: endpoint, Sequence: sequence,
		})
		return err
	}
	for _, step := range []struct {
		pod, endpoint string
		sequence      uint64
		want          codes.Code
		known         string
	}{
		{"vm-3", "10.0.0.3:1", 1, codes.FailedPrecondition, ""},
		{"vm-2", "10.0.0.2:1", 2, codes.OK, "10.0.0.2:1"},
		{"vm-2", "10.0.0.2:2", 1, codes.OK, "10.0.0.2:1"},
		{"vm-2", "10.0.0.2:3", 3, codes.OK, "10.0.0.2:3"},
	} {
		if err := report(step.pod, step.endpoint, step.sequence); status.Code(err) != step.want {
			t.Errorf("%+v: %v", step, err)
		}
		if known := m.Incoming(m.key, "vm-2").GetEndpoint(); known != step.known {
			t.Errorf("%+v: the target is at %q", step, known)
		}
	}
	if m.Incoming(m.key, "vm-3") != nil {
		t.Error("a report of another Pod is stored")
	}
}
