package instrument_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/instrument"
	"github.com/millwright-dev/millwright/driver/status"
)

// script determines the result of all methods of a driver.
type script struct {
	// do returns the error of a call. If nil, calls succeed.
	do func(ctx context.Context) error
	// silent makes responses nil.
	silent bool
}

func respond[Response any](ctx context.Context, s script) (*Response, error) {
	var resp *Response
	if !s.silent {
		resp = new(Response)
	}
	if s.do == nil {
		return resp, nil
	}
	return resp, s.do(ctx)
}

func hook[Request, Response any](s script) fake.Hook[Request, Response] {
	return func(ctx context.Context, _ *Request, _ func() (*Response, error)) (*Response, error) {
		return respond[Response](ctx, s)
	}
}

// required returns a driver without optional methods.
func (s script) required() driver.Driver { return struct{ driver.Driver }{s.full()} }

// full returns a driver with all methods.
func (s script) full() full {
	d := fake.New(fake.Config{IgnoreContext: true})
	d.OnCreate(hook[driver.CreateMachineRequest, driver.CreateMachineResponse](s))
	d.OnDelete(hook[driver.DeleteMachineRequest, driver.DeleteMachineResponse](s))
	d.OnStatus(hook[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse](s))
	d.OnList(hook[driver.ListMachinesRequest, driver.ListMachinesResponse](s))
	d.OnInitialize(hook[driver.InitializeMachineRequest, driver.InitializeMachineResponse](s))
	return full{d, s}
}

// full has all optional methods, including those that the fake driver lacks.
type full struct {
	*fake.Driver

	script script
}

func (f full) GetVolumeIDs(ctx context.Context, _ *driver.GetVolumeIDsRequest) (*driver.GetVolumeIDsResponse, error) {
	return respond[driver.GetVolumeIDsResponse](ctx, f.script)
}

func (f full) GenerateMachineClassForMigration(ctx context.Context, _ *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	return respond[driver.GenerateMachineClassForMigrationResponse](ctx, f.script)
}

func (f full) ListFailureDomains(ctx context.Context, _ *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	return respond[driver.ListFailureDomainsResponse](ctx, f.script)
}

func (f full) PlaceMachine(ctx context.Context, _ *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	return respond[driver.PlaceMachineResponse](ctx, f.script)
}

var (
	machine = &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}}
	class   = &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
)

// operations returns functions that call the methods, by the value of their metric label.
func operations(d *instrument.Driver, secret *corev1.Secret) map[string]func(context.Context) (hasResponse bool, err error) {
	return map[string]func(context.Context) (bool, error){
		"create_machine": func(ctx context.Context) (bool, error) {
			r, err := d.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
			return r != nil, err
		},
		"delete_machine": func(ctx context.Context) (bool, error) {
			r, err := d.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
			return r != nil, err
		},
		"get_machine_status": func(ctx context.Context) (bool, error) {
			r, err := d.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: secret})
			return r != nil, err
		},
		"list_machine": func(ctx context.Context) (bool, error) {
			r, err := d.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: class, Secret: secret})
			return r != nil, err
		},
		"initialize_machine": func(ctx context.Context) (bool, error) {
			r, err := d.InitializeMachine(ctx, &driver.InitializeMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
			return r != nil, err
		},
		"get_volume_ids": func(ctx context.Context) (bool, error) {
			r, err := d.GetVolumeIDs(ctx, &driver.GetVolumeIDsRequest{})
			return r != nil, err
		},
		"generate_machine_class_for_migration": func(ctx context.Context) (bool, error) {
			r, err := d.GenerateMachineClassForMigration(ctx, &driver.GenerateMachineClassForMigrationRequest{MachineClass: class})
			return r != nil, err
		},
		"list_failure_domains": func(ctx context.Context) (bool, error) {
			r, err := d.ListFailureDomains(ctx, &driver.ListFailureDomainsRequest{MachineClass: class, Secret: secret})
			return r != nil, err
		},
	}
}

// logged returns a context whose logger writes to the buffer.
func logged(t *testing.T) (context.Context, *bytes.Buffer) {
	var buffer bytes.Buffer
	handler := slog.NewTextHandler(&buffer, &slog.HandlerOptions{Level: slog.LevelDebug})
	return logr.NewContext(t.Context(), logr.FromSlogHandler(handler)), &buffer
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got code %v, want %v (%v)", got, want, err)
	}
}

func TestDriver_PassesResultsThrough(t *testing.T) {
	failure := status.Error(codes.Aborted, "busy")
	for name, given := range map[string]error{"success": nil, "status": failure, "wrapped": fmt.Errorf("x: %w", failure), "no status": io.EOF} {
		t.Run(name, func(t *testing.T) {
			d := instrument.Wrap(script{do: func(context.Context) error { return given }}.full(), instrument.Options{})
			for operation, call := range operations(d, &corev1.Secret{}) {
				hasResponse, err := call(t.Context())
				if !hasResponse || err != given {
					t.Errorf("%s: got response %v and error %v, want a response and %v", operation, hasResponse, err, given)
				}
			}
		})
	}
}

func TestDriver_AbsentMethodsAreUnimplemented(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	calls := operations(instrument.Wrap(script{}.required(), instrument.Options{Registerer: registry}), nil)
	for _, operation := range []string{"initialize_machine", "get_volume_ids", "generate_machine_class_for_migration", "list_failure_domains"} {
		_, err := calls[operation](t.Context())
		wantCode(t, err, codes.Unimplemented)
	}
	_, err := instrument.Wrap(script{}.required(), instrument.Options{}).PlaceMachine(t.Context(), &driver.PlaceMachineRequest{MachineClass: class, FailureDomain: "a"})
	wantCode(t, err, codes.Unimplemented)
	if families, err := registry.Gather(); len(families) != 0 || err != nil {
		t.Errorf("got metrics without calls: %v (%v)", families, err)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	good := instrument.Wrap(script{}.full(), instrument.Options{Provider: "p", Registerer: registry})
	bad := instrument.Wrap(script{do: func(context.Context) error {
		return status.Error(codes.ResourceExhausted, "no quota")
	}}.full(), instrument.Options{Provider: "p", Registerer: registry})
	for _, d := range []*instrument.Driver{good, bad} {
		for _, call := range operations(d, nil) {
			_, _ = call(t.Context())
		}
	}
	missing := instrument.Wrap(script{do: func(context.Context) error { return status.Error(codes.NotFound, "no VM") }}.full(), instrument.Options{Provider: "p", Registerer: registry})
	_, _ = operations(missing, nil)["get_machine_status"](t.Context())
	local := instrument.Wrap(script{do: func(context.Context) error { return status.Error(codes.Unimplemented, "no") }}.full(), instrument.Options{Provider: "p", Registerer: registry})
	_, _ = operations(local, nil)["list_machine"](t.Context())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, family := range families {
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			count := m.GetHistogram().GetSampleCount() + uint64(m.GetCounter().GetValue())
			got[family.GetName()+" "+strings.Join(labels, " ")] = count
		}
	}
	want := map[string]uint64{}
	for operation := range operations(good, nil) {
		want["mcm_cloud_api_driver_request_duration_seconds operation="+operation+" provider=p"] = 1
		want["mcm_cloud_api_driver_requests_failed_total error_code=8 operation="+operation+" provider=p"] = 1
		want["mcm_cloud_api_requests_total provider=p service="+operation] = 2
		want["mcm_cloud_api_requests_failed_total provider=p service="+operation] = 1
		want["mcm_cloud_api_api_request_duration_seconds provider=p service="+operation] = 1
	}
	// A missing VM counts as a failure of the driver, not of a request. An unimplemented method sends no request.
	want["mcm_cloud_api_driver_requests_failed_total error_code=5 operation=get_machine_status provider=p"] = 1
	want["mcm_cloud_api_requests_total provider=p service=get_machine_status"] = 3
	want["mcm_cloud_api_api_request_duration_seconds provider=p service=get_machine_status"] = 2
	want["mcm_cloud_api_driver_requests_failed_total error_code=12 operation=list_machine provider=p"] = 1
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// TestPlaceMachine_IsProtectedAgainstPanics: PlaceMachine sends no request to the provider, so the decorator only protects against panics and
// invalid results.
func TestPlaceMachine_IsProtectedAgainstPanics(t *testing.T) {
	failure := status.Error(codes.NotFound, "no such place")
	for name, tc := range map[string]struct {
		given script
		want  codes.Code
	}{
		"success":     {script{}, codes.OK},
		"failure":     {script{do: func(context.Context) error { return failure }}, codes.NotFound},
		"panic":       {script{do: func(context.Context) error { panic("oh") }}, codes.Internal},
		"no response": {script{silent: true}, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewPedanticRegistry()
			d := instrument.Wrap(tc.given.full(), instrument.Options{Registerer: registry})
			resp, err := d.PlaceMachine(t.Context(), &driver.PlaceMachineRequest{MachineClass: class, FailureDomain: "a"})
			wantCode(t, err, tc.want)
			if tc.want == codes.OK && resp == nil {
				t.Error("got no response")
			}
			if families, err := registry.Gather(); len(families) != 0 || err != nil {
				t.Errorf("got metrics %v (%v), want none", families, err)
			}
		})
	}
}

func TestDriver_CallsHaveDeadline(t *testing.T) {
	tests := map[string]struct{ option, caller, want time.Duration }{
		"default":        {0, 0, instrument.DefaultTimeout},
		"option":         {time.Minute, 0, time.Minute},
		"caller's first": {time.Minute, time.Second, time.Second},
		"caller's later": {time.Minute, time.Hour, time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := instrument.Wrap(script{do: func(ctx context.Context) error {
					<-ctx.Done()
					return fmt.Errorf("waiting: %w", ctx.Err())
				}}.full(), instrument.Options{Timeout: tt.option})
				for operation, call := range operations(d, nil) {
					ctx, cancel := context.WithCancel(t.Context())
					if tt.caller > 0 {
						ctx, cancel = context.WithTimeout(t.Context(), tt.caller)
					}
					begin := time.Now()
					_, err := call(ctx)
					cancel()
					if took := time.Since(begin); took != tt.want {
						t.Errorf("%s returned after %s, want %s", operation, took, tt.want)
					}
					wantCode(t, err, codes.DeadlineExceeded)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: the context's error is not in the chain", operation)
					}
				}
			})
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		d := instrument.Wrap(script{do: func(ctx context.Context) error { return ctx.Err() }}.required(), instrument.Options{})
		_, err := operations(d, nil)["create_machine"](ctx)
		wantCode(t, err, codes.Canceled)
	})
	t.Run("a timeout inside the driver is not a timeout of the call", func(t *testing.T) {
		d := instrument.Wrap(script{do: func(context.Context) error { return context.DeadlineExceeded }}.required(), instrument.Options{})
		_, err := operations(d, nil)["create_machine"](t.Context())
		wantCode(t, err, codes.Unknown)
	})
}

func TestDriver_InvalidResultsBecomeInternal(t *testing.T) {
	uninitialized := func(context.Context) error { return status.Error(codes.Uninitialized, "steps left") }
	tests := map[string]struct {
		given script
		cause error
		only  string
	}{
		"panic":            {given: script{do: func(context.Context) error { panic("oh") }}},
		"panic with error": {given: script{do: func(context.Context) error { panic(io.ErrNoProgress) }}, cause: io.ErrNoProgress},
		"nil dereference":  {given: script{do: func(context.Context) error { var s *script; s.silent = true; return nil }}},
		"no response":      {given: script{silent: true}},
		"error that is OK": {given: script{do: func(context.Context) error { return status.New(codes.OK, "fine") }}},
		"Uninitialized without response": {
			given: script{silent: true, do: uninitialized}, only: "get_machine_status"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for operation, call := range operations(instrument.Wrap(tt.given.full(), instrument.Options{}), nil) {
				if tt.only != "" && operation != tt.only {
					continue
				}
				_, err := call(t.Context())
				wantCode(t, err, codes.Internal)
				if tt.cause != nil && !errors.Is(err, tt.cause) {
					t.Errorf("%s: %v is not in the chain", operation, tt.cause)
				}
			}
		})
	}
	d := instrument.Wrap(script{do: uninitialized}.required(), instrument.Options{})
	hasResponse, err := operations(d, nil)["get_machine_status"](t.Context())
	wantCode(t, err, codes.Uninitialized)
	if !hasResponse {
		t.Error("got no response next to Uninitialized")
	}
}

func TestDriver_PanicLogsStack(t *testing.T) {
	ctx, log := logged(t)
	d := instrument.Wrap(script{do: func(context.Context) error { panic("boom hunter22") }}.required(), instrument.Options{})
	secret := &corev1.Secret{Data: map[string][]byte{"password": []byte("hunter22")}}
	_, err := operations(d, secret)["delete_machine"](ctx)
	if strings.Contains(err.Error(), "goroutine") || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got error %q", err)
	}
	if !strings.Contains(log.String(), "instrument_test.go") {
		t.Errorf("log contains no stack: %s", log)
	}
	if strings.Contains(err.Error()+log.String(), "hunter22") {
		t.Errorf("error or log contains the secret: %v\n%s", err, log)
	}

	ctx, log = logged(t)
	secret.Data["name"] = []byte("TestDriver_PanicLogsStack")
	_, _ = operations(d, secret)["delete_machine"](ctx)
	if !strings.Contains(log.String(), "instrument_test.go") || strings.Contains(log.String(), "TestDriver_PanicLogsStack") {
		t.Errorf("the stack is missing or contains a secret: %s", log)
	}
}

func TestDriver_LogLines(t *testing.T) {
	tests := map[string]struct {
		operation string
		err       error
		level     string
		code      string
	}{
		"success":              {"create_machine", nil, "level=DEBUG", "code=OK"},
		"no VM yet":            {"get_machine_status", status.Error(codes.NotFound, "none"), "level=DEBUG", "code=NotFound"},
		"no volumes":           {"get_volume_ids", status.Error(codes.Unimplemented, "none"), "level=DEBUG", "code=Unimplemented"},
		"NotFound in creation": {"create_machine", status.Error(codes.NotFound, "none"), "level=INFO", "code=NotFound"},
		"failure":              {"create_machine", status.Error(codes.Unavailable, "away"), "level=INFO", "code=Unavailable"},
		"no code":              {"create_machine", io.EOF, "level=INFO", "code=Unknown"},
		"defect":               {"create_machine", status.Error(codes.Internal, "broken"), "level=ERROR", "code=Internal"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, log := logged(t)
			d := instrument.Wrap(script{do: func(context.Context) error { return tt.err }}.full(), instrument.Options{})
			_, _ = operations(d, nil)[tt.operation](ctx)
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if len(lines) != 1 {
				t.Fatalf("got %d lines, want 1:\n%s", len(lines), log)
			}
			wants := []string{tt.level, tt.code, "operation=" + tt.operation, "duration="}
			if tt.operation != "get_volume_ids" {
				wants = append(wants, "machine=ns/m", "class=ns/c")
			}
			for _, want := range wants {
				if !strings.Contains(lines[0], want) {
					t.Errorf("log line lacks %s: %s", want, lines[0])
				}
			}
		})
	}
}
