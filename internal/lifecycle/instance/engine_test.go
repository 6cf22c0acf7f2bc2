package instance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// bubble runs a test in a synctest bubble, where waiting takes no time.
func bubble(t *testing.T, test func(t *testing.T, d *fake.Driver, p *process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		test(t, d, start(t, d))
	})
}

func TestEngine_CallOrder(t *testing.T) {
	type questions = func(p *process, req instance.Request) any
	type calls = []fake.Method
	ensure := func(p *process, req instance.Request) any { return ask(p.ensure, req) }
	remove := func(p *process, req instance.Request) any { return ask(p.remove, req) }
	empty := func(*fake.Driver) {}
	exists := func(d *fake.Driver) { d.OnStatus(found) }
	cannotLook := func(d *fake.Driver) {
		d.OnStatus(answering(status.Error(codes.Unimplemented, "the status is not available")))
	}
	initializes := func(d *fake.Driver) {
		d.OnInitialize(fake.Always[driver.InitializeMachineRequest](&driver.InitializeMachineResponse{}, nil))
	}
	uninitializedVM := func(d *fake.Driver) { d.OnStatus(uninitialized); initializes(d) }
	cases := map[string]struct {
		reason string
		given  func(d *fake.Driver)
		asked  questions
		req    instance.Request
		want   string
		calls  calls
	}{
		"new": {"the engine looks for it before it creates it", empty, ensure, request("m"), "Exists", calls{fake.GetMachineStatus, fake.CreateMachine}},
		"new, cannot look": {
			"creation is idempotent by name, so no lookup is needed", cannotLook,
			ensure, request("m"), "Exists", calls{fake.GetMachineStatus, fake.CreateMachine},
		},
		"made before":           {"a found instance is adopted", exists, ensure, request("m"), "Exists", calls{fake.GetMachineStatus}},
		"known":                 {"a known instance is not created", exists, ensure, known("m"), "Exists", calls{fake.GetMachineStatus}},
		"known, gone":           {"a lost instance is never created again", empty, ensure, known("m"), "Lost", calls{fake.GetMachineStatus}},
		"known, cannot look":    {"a stored ID is trusted", cannotLook, ensure, known("m"), "Exists", calls{fake.GetMachineStatus}},
		"new, to initialize":    {"initialization follows creation", initializes, ensure, request("m"), "Exists", calls{fake.GetMachineStatus, fake.CreateMachine, fake.InitializeMachine}},
		"found, to initialize":  {"a missing initialization is done later", uninitializedVM, ensure, known("m"), "Exists", calls{fake.GetMachineStatus, fake.InitializeMachine}},
		"deleted":               {"the driver must confirm that it is gone", empty, remove, known("m"), "Gone", calls{fake.DeleteMachine, fake.GetMachineStatus}},
		"deleted, still there":  {"an accepted deletion may not be complete", exists, remove, known("m"), "Remains", calls{fake.DeleteMachine, fake.GetMachineStatus}},
		"deleted without an ID": {"its ID may never have been stored", empty, remove, request("m"), "Gone", calls{fake.DeleteMachine, fake.GetMachineStatus}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDriver()
				tc.given(d)
				p := start(t, d)
				if got := tc.asked(p, tc.req); kind(got) != tc.want {
					t.Errorf("%s: %T %+v, want %s", tc.reason, got, got, tc.want)
				}
				equalCalls(t, d, tc.calls...)
				if got := p.wakes(tc.req); got != 1 {
					t.Errorf("woken %d times for one task", got)
				}
			})
		})
	}
}

func TestEngine_UsesStoredInstance(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnStatus(answering(status.Error(codes.Unimplemented, "the status is not available")))
		req := known("m")
		req.Machine.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
		want := instance.Instance{ProviderID: "sim://1", NodeName: "node-1", Addresses: req.Machine.Status.Addresses}
		if diff := cmp.Diff(want, is[instance.Exists](t, ask(p.Ensure, req)).Instance); diff != "" {
			t.Errorf("the instance (-want +got):\n%s", diff)
		}
	})
}

func TestAddresses_NoDuplicates(t *testing.T) {
	first, second := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.Configure(func(config *fake.Config) { config.Addresses = []corev1.NodeAddress{first} })
		d.OnInitialize(fake.Always[driver.InitializeMachineRequest](&driver.InitializeMachineResponse{Addresses: []corev1.NodeAddress{first, second}}, nil))
		if diff := cmp.Diff([]corev1.NodeAddress{first, second}, is[instance.Exists](t, ask(p.Ensure, request("m"))).Instance.Addresses); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
	})
}

func TestInitialize_FailureKeepsInstance(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		refusal := status.Error(codes.Unavailable, "not now")
		d.Configure(func(config *fake.Config) { config.LastKnownState = "made" })
		d.FailWith(fake.InitializeMachine, refusal)
		got := is[instance.Failed](t, ask(p.Ensure, request("m")))
		if vm := got.Uninitialized; vm == nil || vm.Instance.ProviderID != "sim://1" || vm.Instance.NodeName != "node-1" || !vm.Created {
			t.Errorf("result %+v, want the instance that was created", got)
		}
		if got.LastKnownState == nil || *got.LastKnownState != "made" {
			t.Errorf("the driver's LastKnownState is lost: %v", got.LastKnownState)
		}
		if got.Failure.Method != instance.MethodInitialize || !errors.Is(got.Failure, refusal) {
			t.Errorf("failure %v, want that of InitializeMachine", got.Failure)
		}
	})
}

func TestPrepare_RunsJustBeforeCreation(t *testing.T) {
	prepared := &corev1.Secret{Data: map[string][]byte{"userData": []byte("prepared")}}
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.Configure(func(config *fake.Config) { config.RequireInitialize = true })
		req := request("m")
		req.Prepare = func(context.Context) (*corev1.Secret, error) {
			equalCalls(t, d, fake.GetMachineStatus)
			return prepared, nil
		}
		ask(p.Ensure, req)
		for _, created := range fake.Requests[*driver.CreateMachineRequest](d) {
			if created.Secret != prepared {
				t.Error("the instance was not created with what was prepared")
			}
		}
		for _, initialized := range fake.Requests[*driver.InitializeMachineRequest](d) {
			if initialized.Secret != prepared {
				t.Error("the instance was not initialised with what was prepared")
			}
		}
		equalCalls(t, d, fake.CreateMachine, fake.InitializeMachine) // GetMachineStatus came before Prepare

		d.OnStatus(found)
		other := request("other")
		other.Prepare = func(context.Context) (*corev1.Secret, error) {
			t.Error("prepared although the instance exists")
			return prepared, nil
		}
		ask(p.Ensure, other)
		equalCalls(t, d, fake.GetMachineStatus)
	})
}

func TestPrepare_FailurePreventsCreation(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		away := errors.New("the target is unavailable")
		req := request("m")
		req.Prepare = func(context.Context) (*corev1.Secret, error) { return nil, away }
		got := is[instance.Failed](t, ask(p.Ensure, req))
		equalCalls(t, d, fake.GetMachineStatus)
		if !errors.Is(got.Failure, away) || got.Failure.Method != instance.MethodPrepare || got.Failure.Code != codes.Unknown {
			t.Errorf("failure %+v, want one of Prepare with the code Unknown", got.Failure)
		}
		within(t, "wait", got.Retry, time.Second)

		req.Prepare = func(context.Context) (*corev1.Secret, error) { return &corev1.Secret{}, nil }
		time.Sleep(got.Retry)
		is[instance.Exists](t, ask(p.Ensure, req))
	})
}

func TestEngine_IncompleteResponses(t *testing.T) {
	type response = driver.CreateMachineResponse
	cases := map[string]struct {
		reason       string
		response     *response
		nodeExpected bool
		want         codes.Code
	}{
		"no ID":                  {"nothing can be found without an ID", &response{NodeName: "node-1"}, true, codes.Internal},
		"no ID, no target":       {"nor without a target", &response{}, false, codes.Internal},
		"no node":                {"the node to wait for would be unknown", &response{ProviderID: "sim://1"}, true, codes.Internal},
		"no node, no target":     {"without a target, there is no node", &response{ProviderID: "sim://1"}, false, codes.OK},
		"nothing, with no error": {"a bad driver does not crash the process", nil, true, codes.Internal},
	}
	for name, tc := range cases {
		for _, method := range []instance.Method{instance.MethodCreate, instance.MethodStatus} {
			t.Run(name+"/"+string(method), func(t *testing.T) {
				bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
					d.OnInitialize(fake.Always[driver.InitializeMachineRequest, driver.InitializeMachineResponse](nil, nil))
					respondWith(d, method, tc.response)
					req := request("m")
					req.NodeExpected = tc.nodeExpected
					result := ask(p.Ensure, req)
					if tc.want == codes.OK {
						is[instance.Exists](t, result)
						return
					}
					got := is[instance.Failed](t, result)
					if got.Failure.Code != tc.want || got.Failure.Method != method {
						t.Errorf("%s: %+v, want %s failed with %v", tc.reason, got.Failure, method, tc.want)
					}
					if len(d.Calls(fake.InitializeMachine)) > 0 || got.Uninitialized != nil {
						t.Errorf("%s: continued with %+v", tc.reason, got.Uninitialized)
					}
				})
			})
		}
	}
}

func respondWith(d *fake.Driver, method instance.Method, response *driver.CreateMachineResponse) {
	if method == instance.MethodCreate {
		d.OnCreate(fake.Always[driver.CreateMachineRequest](response, nil))
		return
	}
	var status *driver.GetMachineStatusResponse
	if response != nil {
		status = &driver.GetMachineStatusResponse{ProviderID: response.ProviderID, NodeName: response.NodeName}
	}
	d.OnStatus(fake.Always[driver.GetMachineStatusRequest](status, nil))
}

func TestErrors_WithoutValidCode(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   codes.Code
	}{
		"not a status":     {"nothing is known about it", errors.New("oops"), codes.Unknown},
		"claims to be OK":  {"an error is never a success", status.New(codes.OK, "fine"), codes.Unknown},
		"deadline":         {"the call was cut off", context.DeadlineExceeded, codes.DeadlineExceeded},
		"cancelled":        {"the call was cut off", context.Canceled, codes.Canceled},
		"status inside":    {"wrapping keeps the code", errors.Join(errors.New("outer"), status.Error(codes.Aborted, "busy")), codes.Aborted},
		"status, deadline": {"the driver's code counts", status.WrapError(codes.Aborted, "busy", context.DeadlineExceeded), codes.Aborted},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				d.FailWith(fake.GetMachineStatus, tc.err)
				got := is[instance.Failed](t, ask(p.Ensure, request("m")))
				if got.Failure.Code != tc.want || !errors.Is(got.Failure, tc.err) {
					t.Errorf("%s: %+v, want Failed with %v", tc.reason, got, tc.want)
				}
				within(t, "wait", got.Retry, time.Second)
			})
		})
	}
}

func TestInitialize_DriverWithoutInitializer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		is[instance.Exists](t, ask(start(t, struct{ driver.Driver }{d}).Ensure, request("m")))
		if len(d.Calls(fake.InitializeMachine)) > 0 {
			t.Error("initialized by a driver that cannot")
		}
	})
}

func TestState_IsPassedToDriver(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(fake.Always[driver.CreateMachineRequest](&driver.CreateMachineResponse{LastKnownState: "half made"}, status.Error(codes.Unavailable, "not now")))
		d.OnDelete(fake.Always[driver.DeleteMachineRequest](&driver.DeleteMachineResponse{LastKnownState: "half gone"}, status.Error(codes.Unavailable, "not now")))
		if got := is[instance.Failed](t, ask(p.Ensure, request("m"))); got.LastKnownState == nil || *got.LastKnownState != "half made" {
			t.Errorf("note of a failed creation: %v", got.LastKnownState)
		}
		if got := is[instance.Failed](t, ask(p.Delete, request("m"))); got.LastKnownState == nil || *got.LastKnownState != "half gone" {
			t.Errorf("note of a failed deletion: %v", got.LastKnownState)
		}
		d.OnStatus(answering(status.Error(codes.Unavailable, "not now")))
		d.OnDelete(fake.Always[driver.DeleteMachineRequest](&driver.DeleteMachineResponse{LastKnownState: "going"}, nil))
		if got := is[instance.Failed](t, ask(p.Delete, request("unsure"))); got.LastKnownState == nil || *got.LastKnownState != "going" {
			t.Errorf("note of a deletion whose result is unknown: %v", got.LastKnownState)
		}
		if got := is[instance.Failed](t, ask(p.Ensure, request("silent"))); got.LastKnownState != nil {
			t.Errorf("a note where there was none: %q", *got.LastKnownState)
		}
	})
}

// TestState_NotStorable checks that a LastKnownState that cannot be stored is dropped. If it is too long,
// the API server would refuse the Machine's whole status. If it is not UTF-8, the API server would change it,
// and it would be written again and again.
func TestState_NotStorable(t *testing.T) {
	for name, note := range map[string]string{"too long": strings.Repeat("x", instance.LongestNote+1), "binary": "\xff"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				d.OnCreate(fake.Always[driver.CreateMachineRequest](&driver.CreateMachineResponse{ProviderID: "p", NodeName: "n", LastKnownState: note}, nil))
				d.OnDelete(fake.Always[driver.DeleteMachineRequest](&driver.DeleteMachineResponse{LastKnownState: note}, nil))
				if got := is[instance.Exists](t, ask(p.Ensure, request("m"))); got.LastKnownState != nil {
					t.Error("creation: the note is kept")
				}
				if got := is[instance.Gone](t, ask(p.Delete, request("m"))); got.LastKnownState != nil {
					t.Error("deletion: the note is kept")
				}
			})
		})
	}
}

// TestResponse_NotStorable checks that provider IDs, node names and addresses that cannot be stored are
// refused. The API server would refuse the whole Machine, and its VM would be unknown. A deletion needs no node name.
func TestResponse_NotStorable(t *testing.T) {
	const good = "node-1"
	for name, tc := range map[string]struct {
		id, node      string
		want, deleted bool
	}{
		"good":                      {"sim://1", good, true, true},
		"a huge ID":                 {strings.Repeat("x", 2<<20), good, false, false},
		"a binary ID":               {"sim://\xff", good, false, false},
		"an ID for a terminal":      {"sim://\x1b[2J", good, false, false},
		"a node with spaces":        {"sim://1", "node 1", false, true},
		"a node longer than labels": {"sim://1", strings.Repeat("x", 64), true, true},
		"a huge node":               {"sim://1", strings.Repeat("x", 254), false, true},
		"a binary node":             {"sim://1", "\xff", false, true},
	} {
		for _, method := range []instance.Method{instance.MethodCreate, instance.MethodStatus} {
			t.Run(name+"/"+string(method), func(t *testing.T) {
				bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
					respondWith(d, method, &driver.CreateMachineResponse{ProviderID: tc.id, NodeName: tc.node})
					req := request("m")
					req.NodeExpected = true
					checkStorable(t, ask(p.Ensure, req), tc.want)
				})
			})
		}
		t.Run(name+"/deleted", func(t *testing.T) { // the instance is identified first
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				respondWith(d, instance.MethodStatus, &driver.CreateMachineResponse{ProviderID: tc.id, NodeName: tc.node})
				req := request("m")
				req.NodeExpected = true
				checkStorable(t, ask(p.Find, req), tc.deleted)
			})
		})
	}
}

// checkStorable checks that a driver's response was accepted, or refused with a short message.
func checkStorable(t *testing.T, result any, accepted bool) {
	t.Helper()
	if accepted {
		is[instance.Exists](t, result)
		return
	}
	if failure := is[instance.Failed](t, result).Failure; failure.Code != codes.Internal || len(failure.Error()) > 200 {
		t.Errorf("failure %.300v", failure)
	}
}

// elsewhere is a driver that returns an arbitrary location.
type elsewhere struct {
	*fake.Driver
	location string
}

func (e elsewhere) LocateMachine(context.Context, *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	return &driver.LocateMachineResponse{Location: e.location}, nil
}

// TestLocation_NotStorable checks that nothing is created in a location that the API server cannot
// store.
func TestLocation_NotStorable(t *testing.T) {
	for name, location := range map[string]string{
		"huge": strings.Repeat("x", 300<<10), "binary": "here\xff", "for a terminal": "here\x1b[2J",
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, _ *process) {
				p := start(t, elsewhere{d, location})
				checkStorable(t, ask(p.Ensure, request("created")), false)
				checkStorable(t, ask(p.Delete, request("deleted")), false)
			})
		})
	}
}

// TestAddresses_NotStorable checks that addresses that cannot be stored are dropped.
func TestAddresses_NotStorable(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		good := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}
		all := []corev1.NodeAddress{{Type: "x", Address: "\xff"}, {Type: "\x1b", Address: "y"}, {Type: "x", Address: strings.Repeat("x", 1<<20)}, good}
		d.OnCreate(fake.Always[driver.CreateMachineRequest](&driver.CreateMachineResponse{ProviderID: "p", NodeName: "n", Addresses: all}, nil))
		for i := range 1_000 {
			all = append(all, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.1.%d", i)})
		}
		d.OnInitialize(fake.Always[driver.InitializeMachineRequest](&driver.InitializeMachineResponse{Addresses: all}, nil))
		got := is[instance.Exists](t, ask(p.Ensure, request("m")))
		if n := len(got.Instance.Addresses); n > 64 || n < 2 || got.Instance.Addresses[0] != good {
			t.Errorf("%d addresses", n)
		}
	})
}

func TestEngine_DoesNotRetainRequestObjects(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		req := request("m")
		d.OnStatus(func(ctx context.Context, got *driver.GetMachineStatusRequest, do func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
			if got.Machine == req.Machine || got.MachineClass == req.Class || got.Secret == req.Secret {
				t.Error("the driver works on the caller's objects")
			}
			got.Machine.Labels = map[string]string{v1alpha1.NodeLabelKey: "scribble"}
			got.Secret.Data["userData"][0] = 'x'
			return found(ctx, got, do)
		})
		ask(p.Ensure, req)
		if diff := cmp.Diff(request("m"), req); diff != "" {
			t.Errorf("the request was changed (-before +after):\n%s", diff)
		}
	})
}
