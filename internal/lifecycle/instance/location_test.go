package instance_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// locator is a driver with scripted locations.
type locator struct {
	*fake.Driver
	locate func(recorded string) (*driver.LocateMachineResponse, error)
}

func (l locator) LocateMachine(_ context.Context, req *driver.LocateMachineRequest) (*driver.LocateMachineResponse, error) {
	return l.locate(driver.Location(req.Machine))
}

// in always returns a location.
func in(location string) func(string) (*driver.LocateMachineResponse, error) {
	return func(string) (*driver.LocateMachineResponse, error) {
		return &driver.LocateMachineResponse{Location: location}, nil
	}
}

// moved returns the recorded location of a Machine, and "new" for a Machine without one.
func moved(recorded string) (*driver.LocateMachineResponse, error) {
	if recorded == "" {
		recorded = "new"
	}
	return &driver.LocateMachineResponse{Location: recorded}, nil
}

// at is for a Machine with a recorded location.
func at(location string) instance.Request {
	req := request("m")
	if location != "" {
		req.Machine.Annotations = map[string]string{driver.AnnotationLocation: location}
	}
	return req
}

func TestEngine_Location(t *testing.T) {
	type calls = []fake.Method
	ensure := func(p *process, req instance.Request) any { return ask(p.ensure, req) }
	remove := func(p *process, req instance.Request) any { return ask(p.remove, req) }
	find := func(p *process, req instance.Request) any { return ask(p.Find, req) }
	status1, create, cleanUp := fake.GetMachineStatus, fake.CreateMachine, calls{fake.GetMachineStatus, fake.DeleteMachine, fake.GetMachineStatus}
	for name, tc := range map[string]struct {
		locate   func(string) (*driver.LocateMachineResponse, error)
		recorded string
		exists   bool
		asked    func(*process, instance.Request) any
		want     string
		location string
		calls    calls
	}{
		"nothing recorded":                     {in("here"), "", false, ensure, "Located", "here", calls{status1}},
		"recorded":                             {in("here"), "here", false, ensure, "Exists", "", calls{status1, create}},
		"recorded elsewhere":                   {in("here"), "there", false, ensure, "Failed", "", calls{status1}},
		"moved since the creation began":       {moved, "old", false, ensure, "Located", "new", cleanUp},
		"found, nothing recorded":              {in("here"), "", true, ensure, "Exists", "here", calls{status1}},
		"found, recorded":                      {in("here"), "here", true, ensure, "Exists", "", calls{status1}},
		"found, recorded elsewhere":            {in("here"), "there", true, ensure, "Exists", "here", calls{status1}},
		"deleted, recorded":                    {in("here"), "here", false, remove, "Gone", "", calls{fake.DeleteMachine, status1}},
		"deleted, nothing recorded":            {in("here"), "", false, remove, "Gone", "", calls{fake.DeleteMachine, status1}},
		"deleted, recorded elsewhere":          {in("here"), "there", false, remove, "Failed", "", calls{status1}},
		"deleted and found, elsewhere":         {in("here"), "there", true, remove, "Located", "here", calls{status1}},
		"to be found, recorded elsewhere":      {in("here"), "there", false, find, "Failed", "", calls{status1}},
		"to be found, recorded":                {in("here"), "here", false, find, "Gone", "", calls{status1}},
		"to be found, where it is not":         {in("here"), "", true, find, "Exists", "here", calls{status1}},
		"a location as long as can be stored":  {in(strings.Repeat("x", 2048)), "", false, ensure, "Located", strings.Repeat("x", 2048), calls{status1}},
		"a location longer than can be stored": {in(strings.Repeat("x", 2049)), "", false, ensure, "Failed", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDriver()
				if tc.exists {
					d.OnStatus(found)
				}
				p := start(t, locator{d, tc.locate})
				result := tc.asked(p, at(tc.recorded))
				location := ""
				switch r := result.(type) {
				case instance.Located:
					location = r.Location
				case instance.Exists:
					location = r.Location
				}
				if kind(result) != tc.want || location != tc.location {
					t.Errorf("%.200v in %.20q, want %s in %.20q", result, location, tc.want, tc.location)
				}
				equalCalls(t, d, tc.calls...)
			})
		})
	}
}

// TestLocation_Errors checks that nothing is created or deleted while the location is unknown.
func TestLocation_Errors(t *testing.T) {
	unavailable := func(string) (*driver.LocateMachineResponse, error) {
		return nil, status.Error(codes.Unavailable, "not now")
	}
	for name, tc := range map[string]struct {
		locate func(string) (*driver.LocateMachineResponse, error)
		want   codes.Code
	}{
		"unavailable": {unavailable, codes.Unavailable},
		"no response": {func(string) (*driver.LocateMachineResponse, error) { return nil, nil }, codes.Internal},
		"no location": {in(""), codes.Internal},
		"unavailable for a new creation": {func(recorded string) (*driver.LocateMachineResponse, error) {
			if recorded == "" {
				return unavailable(recorded)
			}
			return moved(recorded)
		}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDriver()
				p := start(t, locator{d, tc.locate})
				failure := is[instance.Failed](t, ask(p.Ensure, at("old"))).Failure
				if failure.Code != tc.want || failure.Method != instance.MethodStatus || failure.Elsewhere() {
					t.Errorf("failure %+v", failure)
				}
				if calls := d.Calls(fake.CreateMachine, fake.DeleteMachine); len(calls) > 0 {
					t.Errorf("%d calls", len(calls))
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		p := start(t, locator{d, unavailable})
		if failure := is[instance.Failed](t, ask(p.Find, at("old"))).Failure; failure.Code != codes.Unavailable {
			t.Errorf("failure %+v", failure)
		}
		equalCalls(t, d)
	})
}

// TestLocation_CleanUpIsAwaited checks that nothing is created in a new location before the resources in the old one
// are gone.
func TestLocation_CleanUpIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		d.OnStatus(foundAfterDeletion(d))
		p := start(t, locator{d, moved})
		if failure := is[instance.Failed](t, ask(p.Ensure, at("old"))).Failure; failure.Code != codes.Aborted {
			t.Errorf("failure %+v", failure)
		}
	})
}

// foundAfterDeletion reports a VM only after DeleteMachine was called.
func foundAfterDeletion(d *fake.Driver) fake.Hook[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse] {
	return func(ctx context.Context, req *driver.GetMachineStatusRequest, do func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
		if len(d.Calls(fake.DeleteMachine)) > 0 {
			return found(ctx, req, do)
		}
		return do()
	}
}

// TestLocation_DriverWithoutLocator checks that a location that another driver recorded is ignored.
func TestLocation_DriverWithoutLocator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is[instance.Exists](t, ask(start(t, struct{ driver.Driver }{newDriver()}).Ensure, at("there")))
	})
}

func TestFailure_Elsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, locator{newDriver(), in("here")})
		if failure := is[instance.Failed](t, ask(p.Ensure, at("there"))).Failure; !failure.Elsewhere() || failure.Code != codes.FailedPrecondition {
			t.Errorf("failure %+v", failure)
		}
	})
	var none *instance.Failure
	if none.Elsewhere() || (&instance.Failure{Err: context.Canceled}).Elsewhere() {
		t.Error("another failure, or none, counts")
	}
}

// TestLocationOf checks that the location is remembered by class and Secret.
func TestLocationOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, req := start(t, locator{newDriver(), in("here")}), at("here")
		is[instance.Exists](t, ask(p.Ensure, req))
		other := &corev1.Secret{Data: map[string][]byte{"userData": []byte("other")}}
		if got := p.LocationOf(req.Class, req.Secret); got != "here" {
			t.Errorf("location %q", got)
		}
		if got := p.LocationOf(req.Class, other) + p.LocationOf(req.Class, nil); got != "" {
			t.Errorf("location %q with another Secret", got)
		}
	})
}
