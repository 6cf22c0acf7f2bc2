// Package steps takes an instance from its creation to its deletion, for machines of both API
// groups. An Adapter stores the instance and reports the results.
package steps

import (
	"context"

	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Step is a method of Steps.
type Step int

// The steps, which are methods of Steps.
const (
	Ensure Step = iota
	AwaitSoleOwner
	Identify
	Delete
)

// Adapter is an object in one pass.
type Adapter interface {
	// Owner returns the object as an owner of its instance.
	Owner() ownership.Owner
	// Request returns the driver's input.
	Request() instance.Request
	// Record stores an instance that belongs to no other object, and where it was found unless
	// that is empty.
	Record(ctx context.Context, found instance.Instance, location string) flow.Result
	// Locate immediately stores where the instance is about to be created, or was found. The request
	// has it afterwards.
	Locate(ctx context.Context, location string) flow.Result
	// Conflict is called when the instance belongs to another object, too. The result must end
	// the pass, or the steps that follow must ignore the instance.
	Conflict(ctx context.Context, step Step, providerID string, other ownership.Owner) flow.Result
	Reporter
}

// Reporter writes a result to the object's status, and returns how the pass continues. It has a method
// for each type of result that is not handled by the steps themselves.
type Reporter interface {
	// Exists is called when the instance is complete and recorded.
	Exists(ctx context.Context, result instance.Exists) flow.Result
	// Lost is called when the recorded instance does not exist any more.
	Lost(ctx context.Context) flow.Result
	// Gone is called by Identify and Delete.
	Gone(ctx context.Context, step Step, result instance.Gone) flow.Result
	// Remains is called by Delete.
	Remains(ctx context.Context, result instance.Remains) flow.Result
	// Failed is called by Ensure, Identify and Delete. An instance that could not be initialized is
	// recorded before.
	Failed(ctx context.Context, step Step, result instance.Failed) flow.Result
	// Await is called by Ensure, Identify and Delete.
	Await(ctx context.Context, step Step, result instance.Pending) flow.Result
}

// Steps runs the steps. Both fields are required.
type Steps struct {
	Engine *instance.Engine
	Owners ownership.Index
}

// Ensure creates the instance if there never was one.
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

// AwaitSoleOwner holds a deletion back while another object has the instance. Only a user can tell
// which one owns it.
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

// Identify asks the driver for the object's instance, and records it: the response to its creation may
// have been lost, and the driver may have another object's instance of that name.
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

// located stores a location, and repeats the step with it.
func located(ctx context.Context, a Adapter, at instance.Located, step func(context.Context, Adapter) flow.Result) flow.Result {
	if result := a.Locate(ctx, at.Location); result.Ends() {
		return result
	}
	return step(ctx, a)
}

// recorded records an instance unless it is nil, and continues with next.
func (s Steps) recorded(ctx context.Context, a Adapter, step Step, exists *instance.Exists, next func() flow.Result) flow.Result {
	if exists != nil {
		if result := s.record(ctx, a, step, *exists); result.Ends() {
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
