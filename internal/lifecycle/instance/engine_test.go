package instance_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// bubble runs a test on a clock that takes no time.
func bubble(t *testing.T, test func(t *testing.T, d *scripted, p *process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{}
		test(t, d, start(t, d))
	})
}

func TestCallsInOrder(t *testing.T) {
	type questions = func(p *process, req instance.Request) instance.Answer
	ensure := func(p *process, req instance.Request) instance.Answer { return ask(p.Ensure, req) }
	remove := func(p *process, req instance.Request) instance.Answer { return ask(p.Delete, req) }
	unimplemented := answering(status.Error(codes.Unimplemented, "cannot tell"))
	initialized := func(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
		return &driver.InitializeMachineResponse{}, nil
	}
	cases := map[string]struct {
		reason string
		given  *scripted
		asked  questions
		req    instance.Request
		state  instance.State
		calls  []string
	}{
		"new": {"it is looked for before it is created", &scripted{}, ensure, request("m"), instance.Exists, []string{"Status", "Create"}},
		"new, cannot look": {
			"creation is idempotent by name, so it may do without a look", &scripted{find: unimplemented},
			ensure, request("m"), instance.Exists, []string{"Status", "Create"},
		},
		"made before":           {"what is found is adopted", &scripted{find: found}, ensure, request("m"), instance.Exists, []string{"Status"}},
		"known":                 {"what is known is not created", &scripted{find: found}, ensure, known("m"), instance.Exists, []string{"Status"}},
		"known, gone":           {"a lost instance is never created again", &scripted{}, ensure, known("m"), instance.Lost, []string{"Status"}},
		"known, cannot look":    {"a stored ID is trusted", &scripted{find: unimplemented}, ensure, known("m"), instance.Exists, []string{"Status"}},
		"new, to initialise":    {"initialisation follows creation", &scripted{initialize: initialized}, ensure, request("m"), instance.Exists, []string{"Status", "Create", "Initialize"}},
		"found, to initialise":  {"initialisation is caught up on", &scripted{find: uninitialized, initialize: initialized}, ensure, known("m"), instance.Exists, []string{"Status", "Initialize"}},
		"deleted":               {"the driver is asked whether it is gone", &scripted{}, remove, known("m"), instance.Gone, []string{"Delete", "Status"}},
		"deleted, still there":  {"an accepted deletion is not the end", &scripted{find: found}, remove, known("m"), instance.Remains, []string{"Delete", "Status"}},
		"deleted without an ID": {"its ID may never have been stored", &scripted{}, remove, request("m"), instance.Gone, []string{"Delete", "Status"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := tc.given
				p := start(t, d)
				if got := tc.asked(p, tc.req); got.State != tc.state {
					t.Errorf("%s: state %v, want %v (failure: %v)", tc.reason, got.State, tc.state, got.Failure)
				}
				equalCalls(t, d, tc.calls...)
				if got := p.wakes(tc.req); got != 1 {
					t.Errorf("woken %d times for one task", got)
				}
			})
		})
	}
}

func TestStoredInstanceIsTakenFromTheMachine(t *testing.T) {
	bubble(t, func(t *testing.T, d *scripted, p *process) {
		d.find = answering(status.Error(codes.Unimplemented, "cannot tell"))
		req := known("m")
		req.Machine.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
		want := instance.Instance{ProviderID: "sim://1", NodeName: "node-1", Addresses: req.Machine.Status.Addresses}
		if diff := cmp.Diff(want, ask(p.Ensure, req).Instance); diff != "" {
			t.Errorf("the instance (-want +got):\n%s", diff)
		}
	})
}

func TestAddressesAreNamedOnce(t *testing.T) {
	first, second := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}
	bubble(t, func(t *testing.T, d *scripted, p *process) {
		d.create = func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{ProviderID: "sim://1", NodeName: "node-1", Addresses: []corev1.NodeAddress{first}}, nil
		}
		d.initialize = func(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
			return &driver.InitializeMachineResponse{Addresses: []corev1.NodeAddress{first, second}}, nil
		}
		if diff := cmp.Diff([]corev1.NodeAddress{first, second}, ask(p.Ensure, request("m")).Instance.Addresses); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
	})
}

func TestFailedInitialisationKeepsTheInstance(t *testing.T) {
	bubble(t, func(t *testing.T, d *scripted, p *process) {
		refusal := status.Error(codes.Unavailable, "not now")
		d.create = func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{ProviderID: "sim://1", NodeName: "node-1", LastKnownState: "made"}, nil
		}
		d.initialize = func(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
			return nil, refusal
		}
		got := ask(p.Ensure, request("m"))
		if got.State != instance.Failed || got.Instance.ProviderID != "sim://1" || got.Instance.NodeName != "node-1" || !got.Created {
			t.Errorf("answer %+v, want Failed with the instance that was created", got)
		}
		if got.LastKnownState == nil || *got.LastKnownState != "made" {
			t.Errorf("the driver's note is lost: %v", got.LastKnownState)
		}
		if got.Failure == nil || got.Failure.Method != instance.MethodInitialize || !errors.Is(got.Failure, refusal) {
			t.Errorf("failure %v, want that of InitializeMachine", got.Failure)
		}
	})
}

func TestPrepareComesRightBeforeCreation(t *testing.T) {
	prepared := &corev1.Secret{Data: map[string][]byte{"userData": []byte("prepared")}}
	bubble(t, func(t *testing.T, d *scripted, p *process) {
		var created *corev1.Secret
		d.create = func(_ context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			created = req.Secret
			return &driver.CreateMachineResponse{ProviderID: "sim://1", NodeName: "node-1"}, nil
		}
		req := request("m")
		req.Prepare = func(context.Context) (*corev1.Secret, error) {
			defer d.enter("Prepare", req.Machine)()
			return prepared, nil
		}
		d.initialize = func(_ context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
			if req.Secret != prepared {
				t.Error("the instance was not initialised with what was prepared")
			}
			return &driver.InitializeMachineResponse{}, nil
		}
		ask(p.Ensure, req)
		equalCalls(t, d, "Status", "Prepare", "Create", "Initialize")
		if created != prepared {
			t.Error("the instance was not created with what was prepared")
		}

		d.find = found
		other := request("other")
		other.Prepare = req.Prepare
		ask(p.Ensure, other)
		equalCalls(t, d, "Status")
	})
}

func TestFailedPrepareBlocksCreation(t *testing.T) {
	bubble(t, func(t *testing.T, d *scripted, p *process) {
		away := errors.New("the target is away")
		req := request("m")
		req.Prepare = func(context.Context) (*corev1.Secret, error) { return nil, away }
		got := ask(p.Ensure, req)
		equalCalls(t, d, "Status")
		if got.State != instance.Failed || !errors.Is(got.Failure, away) || got.Failure.Method != instance.MethodPrepare || got.Failure.Code != codes.Unknown {
			t.Errorf("answer %+v, want Failed by Prepare with the code Unknown", got)
		}
		within(t, "wait", got.Retry, time.Second)

		req.Prepare = func(context.Context) (*corev1.Secret, error) { return &corev1.Secret{}, nil }
		time.Sleep(got.Retry)
		if got := ask(p.Ensure, req); got.State != instance.Exists {
			t.Errorf("state %v after the target came back, want Exists", got.State)
		}
	})
}

func TestAnswersThatNameTooLittle(t *testing.T) {
	type response = driver.CreateMachineResponse
	cases := map[string]struct {
		reason       string
		response     *response
		nodeExpected bool
		want         codes.Code
	}{
		"no ID":                  {"nothing can be found without an ID", &response{NodeName: "node-1"}, true, codes.Internal},
		"no ID, no target":       {"nor without a target", &response{}, false, codes.Internal},
		"no node":                {"nobody would know what to wait for", &response{ProviderID: "sim://1"}, true, codes.Internal},
		"no node, no target":     {"without a target there is no node", &response{ProviderID: "sim://1"}, false, codes.OK},
		"nothing, with no error": {"a bad driver does not take the process down", nil, true, codes.Internal},
	}
	for name, tc := range cases {
		for _, method := range []instance.Method{instance.MethodCreate, instance.MethodStatus} {
			t.Run(name+"/"+string(method), func(t *testing.T) {
				bubble(t, func(t *testing.T, d *scripted, p *process) {
					initialized := 0
					d.initialize = func(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
						initialized++
						return nil, nil
					}
					answerWith(d, method, tc.response)
					req := request("m")
					req.NodeExpected = tc.nodeExpected
					got := ask(p.Ensure, req)
					if tc.want == codes.OK {
						if got.State != instance.Exists {
							t.Errorf("%s: %+v", tc.reason, got)
						}
						return
					}
					if got.State != instance.Failed || got.Failure.Code != tc.want || got.Failure.Method != method {
						t.Errorf("%s: %+v, want %s failed with %v", tc.reason, got, method, tc.want)
					}
					if initialized > 0 || got.Instance.ProviderID != "" {
						t.Errorf("%s: went on with %+v", tc.reason, got.Instance)
					}
				})
			})
		}
	}
}

func answerWith(d *scripted, method instance.Method, response *driver.CreateMachineResponse) {
	if method == instance.MethodCreate {
		d.create = func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return response, nil
		}
		return
	}
	d.find = func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
		if response == nil {
			return nil, nil
		}
		return &driver.GetMachineStatusResponse{ProviderID: response.ProviderID, NodeName: response.NodeName}, nil
	}
}

func TestErrorsWithoutAProperCode(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   codes.Code
	}{
		"not a status":     {"nothing is known of it", errors.New("oops"), codes.Unknown},
		"claims to be OK":  {"an error is never a success", status.New(codes.OK, "fine"), codes.Unknown},
		"deadline":         {"the call was cut off", context.DeadlineExceeded, codes.DeadlineExceeded},
		"cancelled":        {"the call was cut off", context.Canceled, codes.Canceled},
		"status inside":    {"wrapping keeps the code", errors.Join(errors.New("outer"), status.Error(codes.Aborted, "busy")), codes.Aborted},
		"status, deadline": {"the driver's word counts", status.WrapError(codes.Aborted, "busy", context.DeadlineExceeded), codes.Aborted},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *scripted, p *process) {
				d.find = func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
					return nil, tc.err
				}
				got := ask(p.Ensure, request("m"))
				if got.State != instance.Failed || got.Failure.Code != tc.want || !errors.Is(got.Failure, tc.err) {
					t.Errorf("%s: %+v, want Failed with %v", tc.reason, got, tc.want)
				}
				within(t, "wait", got.Retry, time.Second)
			})
		})
	}
}

func TestDriverWithoutInitializer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &scripted{}
		d.initialize = func(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
			t.Error("initialised by a driver that cannot")
			return nil, nil
		}
		if got := ask(start(t, plain{d}).Ensure, request("m")); got.State != instance.Exists {
			t.Errorf("state %v, want Exists", got.State)
		}
	})
}

func TestDriversNotesAreHandedOn(t *testing.T) {
	bubble(t, func(t *testing.T, d *scripted, p *process) {
		d.create = func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
			return &driver.CreateMachineResponse{LastKnownState: "half made"}, status.Error(codes.Unavailable, "not now")
		}
		d.remove = func(context.Context, *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
			return &driver.DeleteMachineResponse{LastKnownState: "half gone"}, status.Error(codes.Unavailable, "not now")
		}
		if got := ask(p.Ensure, request("m")); got.LastKnownState == nil || *got.LastKnownState != "half made" {
			t.Errorf("note of a failed creation: %v", got.LastKnownState)
		}
		if got := ask(p.Delete, request("m")); got.LastKnownState == nil || *got.LastKnownState != "half gone" {
			t.Errorf("note of a failed deletion: %v", got.LastKnownState)
		}
		d.find, d.remove = answering(status.Error(codes.Unavailable, "not now")), func(context.Context, *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
			return &driver.DeleteMachineResponse{LastKnownState: "going"}, nil
		}
		if got := ask(p.Delete, request("unsure")); got.LastKnownState == nil || *got.LastKnownState != "going" {
			t.Errorf("note of a deletion of which nobody can reports whether it is done: %v", got.LastKnownState)
		}
		if got := ask(p.Ensure, request("silent")); got.LastKnownState != nil {
			t.Errorf("a note where there was none: %q", *got.LastKnownState)
		}
	})
}

func TestTheCallersObjectsAreNotKept(t *testing.T) {
	bubble(t, func(t *testing.T, d *scripted, p *process) {
		req := request("m")
		d.find = func(_ context.Context, got *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
			if got.Machine == req.Machine || got.MachineClass == req.Class || got.Secret == req.Secret {
				t.Error("the driver works on the caller's objects")
			}
			got.Machine.Labels = map[string]string{v1alpha1.NodeLabelKey: "scribble"}
			got.Secret.Data["userData"][0] = 'x'
			return found(t.Context(), got)
		}
		ask(p.Ensure, req)
		if diff := cmp.Diff(request("m"), req); diff != "" {
			t.Errorf("the request was changed (-before +after):\n%s", diff)
		}
	})
}
