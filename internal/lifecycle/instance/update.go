package instance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// Differences are the differences between an instance and a class, as short texts of the driver.
type Differences struct {
	// Updates need no new instance. AtNextStart are those Updates that take effect at its next start.
	Updates, AtNextStart []string
	// Replacements need a new instance.
	Replacements []string
}

// Unable is the only replacement reported for a driver that cannot update instances.
const Unable = "its driver cannot update existing VMs"

// Plan returns the differences between an instance with a provider ID and the class of the request. It changes
// nothing. A result is kept until Forget is called or the request changes.
func (e *Engine) Plan(req Request) UpdateResult {
	return pursue(e, goalPlanned, req, func(ctx context.Context, req Request) UpdateResult { return e.compare(ctx, req, true) })
}

// Update updates an instance with a provider ID as far as possible, and returns what was changed and what needs
// a new instance. A result is kept until Forget is called or the request changes.
func (e *Engine) Update(req Request) UpdateResult { return pursue(e, goalUpdated, req, e.update) }

// update compares again after the update, because a driver may misreport what it has done.
func (e *Engine) update(ctx context.Context, req Request) UpdateResult {
	result := e.compare(ctx, req, false)
	done, _ := result.(Compared)
	if len(done.Differences.Updates) == 0 {
		return result // also a failure
	}
	result = e.compare(ctx, req, true)
	left, ok := result.(Compared)
	if !ok {
		return result
	}
	if still := left.Differences.Updates; len(still) > 0 {
		return failed(MethodUpdate, status.Error(codes.Internal, "the driver reported that it updated the VM, but the VM still differs in "+strings.Join(still, ", ")))
	}
	done.Differences.Replacements = left.Differences.Replacements
	return done
}

func (e *Engine) compare(ctx context.Context, req Request, dryRun bool) UpdateResult {
	updater, ok := driver.As[driver.Updater](e.driver)
	if !ok {
		return Compared{Differences{Replacements: []string{Unable}}}
	}
	resp, err := updater.UpdateMachine(ctx, &driver.UpdateMachineRequest{
		Machine: req.Machine, MachineClass: req.Class, Secret: req.Secret, MadeFrom: req.MadeFrom, DryRun: dryRun,
	})
	switch code := codeOf(err); {
	case code == codes.Unimplemented:
		return Compared{Differences{Replacements: []string{Unable}}}
	case code != codes.OK:
		return failed(MethodUpdate, err)
	case resp == nil:
		return failed(MethodUpdate, noResponse(err))
	}
	return Compared{Differences{
		Updates: shown(resp.Updates), AtNextStart: shown(resp.AtNextStart), Replacements: shown(resp.Replacements),
	}}
}

// Limits of the texts that a driver returns about differences.
const (
	mostDifferences   = 16
	longestDifference = 256
)

// shown returns a driver's texts in a form that can be stored and displayed. No text is lost: if there are too
// many, the last one is the number of the others.
func shown(texts []string) []string {
	var all []string
	for i, text := range texts {
		if len(all) == mostDifferences-1 && len(texts) > mostDifferences {
			return append(all, fmt.Sprintf("%d more", len(texts)-i))
		}
		if len(text) > longestDifference || !IsPrintable(text) || strings.TrimSpace(text) == "" {
			text = "a difference that the driver does not name"
		}
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}
