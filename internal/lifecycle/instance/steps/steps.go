// Package steps manages an instance from its creation to its deletion, for machines of both API groups. An
// Adapter stores the instance and reports the results.
package steps

import (
	"context"

	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Step identifies a method of Steps.
type Step int

// The steps, named after the methods of Steps.
const (
	Ensure Step = iota
	AwaitSoleOwner
	Identify
	Delete
)

// Adapter is a machine object in one pass.
type Adapter interface {
	// Owner returns the object as an owner of its instance.
	Owner() ownership.Owner
	// Request returns the input of the driver.
	Request() instance.Request
	// Record stores an instance that belongs to no other object, and its location if that is not empty.
	Record(ctx context.Context, found instance.Instance, location string) flow.Result
	// Locate immediately stores where the instance is about to be created or was found. Afterwards, Request
	// includes the location.
	Locate(ctx context.Context, location string) flow.Result
	// Conflict is called when the instance also belongs to another object. The result must end the pass, or the
	// following steps must ignore the instance.
	Conflict(ctx context.Context, step Step, providerID string, other ownership.Owner) flow.Result
	Reporter
}

// Reporter writes a result to the object's status and returns how the pass continues. It has a method for each
// result type that the steps do not handle themselves.
type Reporter interface {
	// Exists is called when the instance is complete and recorded.
	Exists(ctx context.Context, result instance.Exists) flow.Result
	// Lost is called when the recorded instance no longer exists.
	Lost(ctx context.Context) flow.Result
	// Gone is called by Identify and Delete.
	Gone(ctx context.Context, step Step, result instance.Gone) flow.Result
	// Remains is called by Delete.
	Remains(ctx context.Context, result instance.Remains) flow.Result
	// Failed is called by Ensure, Identify and Delete. If an instance could not be initialized, it is recorded
	// first.
	Failed(ctx context.Context, step Step, result instance.Failed) flow.Result
	// Await is called by Ensure, Identify and Delete.
	Await(ctx context.Context, step Step, result instance.Pending) flow.Result
}

// Steps runs the steps. Both fields are required.
type Steps struct {
	Engine *instance.Engine
	Owners ownership.Index
}

// Ensure creates the instance if it never existed.
func (s Steps) Ensure(ctx context.Context, a Adapter) flow.Result {
	result := s.Engine.Ensure(a.Request())
	switch r := result.(type) {
	case instance.Located:
		return located(ctx, a, r, s.Ensure)
	case instance.Exists:
		return s.recorded(ctx, a, Ensure, &r, func() flow.Result { return a.Exists(ctx, r) })
	case instance.Failed:
		return s.recorded(ctx, a, Ensure, r.Uninitialized, func() flow.Result { return a.Failed(ctx, Ensure, r) })
	case instance.Lost:
		return a.Lost(ctx)
	}
	return a.Await(ctx, Ensure, result.(instance.Pending))
}

// AwaitSoleOwner delays a deletion while another object has the same instance. Only a user can decide which one
// owns it.
func (s Steps) AwaitSoleOwner(ctx context.Context, a Adapter) flow.Result {
	ours := a.Owner()
	if s.Engine.Deleting(ours.Key) {
		return flow.Continue()
	}
	other, err := s.Owners.Sharing(ctx, ours, ours.ProviderID)
	if err != nil || other == nil {
		return flow.Fail(err)
	}
	return a.Conflict(ctx, AwaitSoleOwner, ours.ProviderID, *other)
}

// Identify asks the driver for the object's instance and records it. It is needed because the response to the
// creation may have been lost, and the driver may return another object's instance of the same name.
func (s Steps) Identify(ctx context.Context, a Adapter) flow.Result {
	result := s.Engine.Find(a.Request())
	switch r := result.(type) {
	case instance.Exists:
		return s.record(ctx, a, Identify, r)
	case instance.Gone:
		return a.Gone(ctx, Identify, r)
	case instance.Failed:
		return a.Failed(ctx, Identify, r)
	}
	return a.Await(ctx, Identify, result.(instance.Pending))
}

// Delete deletes the instance.
func (s Steps) Delete(ctx context.Context, a Adapter) flow.Result {
	result := s.Engine.Delete(a.Request())
	switch r := result.(type) {
	case instance.Located:
		return located(ctx, a, r, s.Delete)
	case instance.Gone:
		return a.Gone(ctx, Delete, r)
	case instance.Remains:
		return a.Remains(ctx, r)
	case instance.Failed:
		return a.Failed(ctx, Delete, r)
	}
	return a.Await(ctx, Delete, result.(instance.Pending))
}

// located stores a location and repeats the step with it.
func located(ctx context.Context, a Adapter, at instance.Located, step func(context.Context, Adapter) flow.Result) flow.Result {
	if result := a.Locate(ctx, at.Location); result.StopsPass() {
		return result
	}
	return step(ctx, a)
}

// recorded records an instance if it is not nil, and continues with next.
func (s Steps) recorded(ctx context.Context, a Adapter, step Step, exists *instance.Exists, next func() flow.Result) flow.Result {
	if exists != nil {
		if result := s.record(ctx, a, step, *exists); result.StopsPass() {
			return result
		}
	}
	return next()
}

func (s Steps) record(ctx context.Context, a Adapter, step Step, exists instance.Exists) flow.Result {
	found := exists.Instance
	if ours := a.Owner(); ours.ProviderID == "" {
		other, err := s.Owners.Conflicting(ctx, ours, found.ProviderID)
		switch {
		case err != nil:
			return flow.Fail(err)
		case other != nil:
			return a.Conflict(ctx, step, found.ProviderID, *other)
		}
	}
	return a.Record(ctx, found, exists.Location)
}
