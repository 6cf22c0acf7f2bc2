// Package steps takes an instance from its creation to its deletion, for machines of both APIs.
//
// What differs between the APIs is behind an Adapter: how an instance is stored, and what the
// driver's answers mean to users of that API.
package steps

import (
	"context"

	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Step is one of the steps that an instance's life is made of.
type Step int

// The steps.
const (
	// Ensure has the instance created if there never was one.
	Ensure Step = iota
	// AwaitSoleOwner holds a deletion back that would take the instance from another object.
	AwaitSoleOwner
	// Identify finds out which instance is to be deleted.
	Identify
	// Delete has the instance deleted.
	Delete
)

// Adapter is an object of one API in one pass.
type Adapter interface {
	// Owner returns the object as an owner of its instance.
	Owner() ownership.Owner
	// Request returns what the driver is asked with.
	Request() instance.Request
	// Record stores an instance that is no other object's as the object's own.
	Record(ctx context.Context, found instance.Instance) flow.Result
	// Conflict is called when the instance belongs to another object, too. The result must end
	// the pass, or the steps that follow must leave the instance alone.
	Conflict(ctx context.Context, step Step, providerID string, other ownership.Owner) flow.Result
	// Report writes what the driver has answered to the object's status, and says how the pass
	// goes on. An instance that exists is recorded before.
	Report(ctx context.Context, step Step, answer instance.Answer) flow.Result
}

// Steps runs the steps. Both fields are required.
type Steps struct {
	Engine *instance.Engine
	Owners ownership.Index
}

// Ensure looks for the instance, and has it created if there never was one. One that is there
// but could not be initialised is recorded, too.
func (s Steps) Ensure(ctx context.Context, a Adapter) flow.Result {
	answer := s.Engine.Ensure(a.Request())
	if answer.Instance.ProviderID != "" {
		if result := s.record(ctx, a, Ensure, answer.Instance); result.Ends() {
			return result
		}
	}
	return a.Report(ctx, Ensure, answer)
}

// AwaitSoleOwner holds a deletion back while another object keeps the instance. Whose it is,
// only a user can tell.
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

// Identify asks the driver which instance the object has, and records it: the answer to its
// creation may have been lost. Nothing is deleted by its name alone, since a driver may know
// another object's instance by that name.
func (s Steps) Identify(ctx context.Context, a Adapter) flow.Result {
	answer := s.Engine.Find(a.Request())
	if answer.State == instance.Exists {
		return s.record(ctx, a, Identify, answer.Instance)
	}
	return a.Report(ctx, Identify, answer)
}

// Delete has the driver delete the instance. Its state is Gone when the driver says so.
func (s Steps) Delete(ctx context.Context, a Adapter) flow.Result {
	return a.Report(ctx, Delete, s.Engine.Delete(a.Request()))
}

// record has an instance stored, unless it belongs to another object.
func (s Steps) record(ctx context.Context, a Adapter, step Step, found instance.Instance) flow.Result {
	if ours := a.Owner(); ours.ProviderID == "" {
		other, err := s.Owners.Conflicting(ctx, ours, found.ProviderID)
		switch {
		case err != nil:
			return flow.Fail(err)
		case other != nil:
			return a.Conflict(ctx, step, found.ProviderID, *other)
		}
	}
	return a.Record(ctx, found)
}
