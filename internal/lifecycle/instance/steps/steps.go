// Package steps takes an instance from its creation to its deletion, for machines of both API
// groups. An Adapter stores the instance and reports the driver's answers.
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
	// Locate stores at once where the instance is about to be created, or was found. The request
	// has it afterwards.
	Locate(ctx context.Context, location string) flow.Result
	// Conflict is called when the instance belongs to another object, too. The result must end
	// the pass, or the steps that follow must ignore the instance.
	Conflict(ctx context.Context, step Step, providerID string, other ownership.Owner) flow.Result
	// Report writes the driver's answer to the object's status, and returns how the pass goes
	// on. An instance that exists is recorded before.
	Report(ctx context.Context, step Step, answer instance.Answer) flow.Result
}

// Steps runs the steps. Both fields are required.
type Steps struct {
	Engine *instance.Engine
	Owners ownership.Index
}

// Ensure has the instance created if there never was one. One that could not be initialized is
// recorded, too.
func (s Steps) Ensure(ctx context.Context, a Adapter) flow.Result {
	answer, result := located(ctx, a, s.Engine.Ensure)
	if !result.Ends() && answer.Instance.ProviderID != "" {
		result = s.record(ctx, a, Ensure, answer)
	}
	if result.Ends() {
		return result
	}
	return a.Report(ctx, Ensure, answer)
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

// Identify asks the driver for the object's instance, and records it: the answer to its creation may
// have been lost, and the driver may have another object's instance of that name.
func (s Steps) Identify(ctx context.Context, a Adapter) flow.Result {
	answer := s.Engine.Find(a.Request())
	if answer.State == instance.Exists {
		return s.record(ctx, a, Identify, answer)
	}
	return a.Report(ctx, Identify, answer)
}

// Delete has the driver delete the instance.
func (s Steps) Delete(ctx context.Context, a Adapter) flow.Result {
	answer, result := located(ctx, a, s.Engine.Delete)
	if result.Ends() {
		return result
	}
	return a.Report(ctx, Delete, answer)
}

// located asks the engine, and again once a location that it answered is stored.
func located(ctx context.Context, a Adapter, ask func(instance.Request) instance.Answer) (instance.Answer, flow.Result) {
	answer := ask(a.Request())
	if answer.State != instance.Located {
		return answer, flow.Continue()
	}
	if result := a.Locate(ctx, answer.Location); result.Ends() {
		return answer, result
	}
	return ask(a.Request()), flow.Continue()
}

func (s Steps) record(ctx context.Context, a Adapter, step Step, answer instance.Answer) flow.Result {
	found := answer.Instance
	if ours := a.Owner(); ours.ProviderID == "" {
		other, err := s.Owners.Conflicting(ctx, ours, found.ProviderID)
		switch {
		case err != nil:
			return flow.Fail(err)
		case other != nil:
			return a.Conflict(ctx, step, found.ProviderID, *other)
		}
	}
	return a.Record(ctx, found, answer.Location)
}
