package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance/internal/observe"
	"github.com/millwright-dev/millwright/driver/status"
)

// callsReturn is the number of the rule that calls return. If it fails, all other rules about contexts would wait.
const callsReturn = 82

// anyMethod are the codes that any method may return.
var anyMethod = []codes.Code{codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable, codes.Unauthenticated}

// listed are the additional codes of each method.
var listed = map[string][]codes.Code{
	"CreateMachine": {
		codes.InvalidArgument, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted,
		codes.OutOfRange, codes.Unimplemented,
	},
	"DeleteMachine": {codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition, codes.Aborted, codes.Unimplemented, codes.NotFound},
	"GetMachineStatus": {
		codes.NotFound, codes.Uninitialized, codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange,
		codes.Unimplemented,
	},
	"ListMachines":       {codes.InvalidArgument, codes.PermissionDenied, codes.Unimplemented},
	"GetVolumeIDs":       {codes.InvalidArgument, codes.Unimplemented},
	"ListFailureDomains": {codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented},
	"LocateMachine":      {codes.InvalidArgument, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented},
	"UpdateMachine": {
		codes.NotFound, codes.InvalidArgument, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition, codes.Aborted, codes.OutOfRange,
		codes.Unimplemented,
	},
}

var contextRules = []Rule{
	{
		Number: 80, Level: Must, Title: "a canceled CreateMachine returns Canceled and creates no VM", Places: []string{"driver Requests 6", "MCM CreateMachine 12"},
		check: func(p *probe) { p.wantEnded(observe.Canceled(p.ctx), codes.Canceled) },
	},
	{
		Number: 81, Level: Must, Title: "an expired CreateMachine returns DeadlineExceeded and creates no VM", Places: []string{"driver Requests 6", "MCM CreateMachine 12"},
		check: func(p *probe) {
			ctx, cancel := observe.Expired(p.ctx)
			defer cancel()
			p.wantEnded(ctx, codes.DeadlineExceeded)
		},
	},
	{
		Number: callsReturn, Level: Must, Title: "calls return when their context is done", Places: []string{"driver Requests 6"},
		check: func(p *probe) {
			p.provoke()
			for _, call := range p.calls {
				if call.hung {
					p.failf("%v", call.err)
				}
			}
		},
	},
	{
		Number: 83, Level: Must, Title: "calls whose context is done leave no goroutine running", Places: []string{"driver Requests 6"},
		needs: []int{callsReturn}, check: leavesNoGoroutine,
	},
}

var errorRules = []Rule{
	{
		Number: 84, Level: Must, Title: "every error has a code",
		Places: []string{
			"driver Errors 1", "MCM Error Scheme 1", "MCM CreateMachine 11", "MCM DeleteMachine 10", "MCM GetMachineStatus 7", "MCM ListMachines 6",
		},
		needs: []int{callsReturn},
		check: func(p *probe) {
			p.eachError(func(call record) {
				if _, ok := status.FromError(call.err); !ok {
					p.failf("%s returned an error without a code: %v", call.method, call.err)
				}
			})
		},
	},
	{
		Number: 85, Level: Must, Title: "an error message is a sentence",
		Places: []string{
			"driver Errors 1", "MCM CreateMachine 13", "MCM DeleteMachine 12", "MCM GetMachineStatus 9", "MCM ListMachines 8", "MCM GetVolumeIDs 5",
			"MCM GenerateMachineClassForMigration 5",
		},
		needs: []int{callsReturn},
		check: func(p *probe) {
			p.eachError(func(call record) {
				if s, _ := status.FromError(call.err); !strings.Contains(strings.TrimSpace(s.Message()), " ") || !utf8.ValidString(s.Message()) {
					p.failf("%s returned %s with the message %q, want a sentence", call.method, s.Code(), s.Message())
				}
			})
		},
	},
	{
		Number: 86, Level: Must, Title: "error messages contain no secrets", Places: []string{"driver Errors 1"},
		needs: []int{callsReturn},
		check: func(p *probe) {
			p.eachError(func(call record) {
				if p.hasSecret(call.err.Error()) {
					p.failf("%s returned an error with the code %s that contains a value of the Secret", call.method, status.Code(call.err))
				}
			})
		},
	},
	{
		Number: 87, Level: Must, Title: "a method returns only the codes of its contract",
		Places: []string{
			"driver Errors 3", "driver ListMachines Codes", "driver GetVolumeIDs Codes", "driver ListFailureDomains Codes", "driver LocateMachine Codes", "driver UpdateMachine Codes",
			"MCM CreateMachine 12", "MCM DeleteMachine 11", "MCM GetMachineStatus 8", "MCM ListMachines 7",
		},
		needs: []int{callsReturn},
		check: func(p *probe) {
			p.eachError(func(call record) {
				may, known := listed[call.method]
				if code := status.Code(call.err); known && !slices.Contains(slices.Concat(anyMethod, may), code) {
					p.failf("%s returned %s; controllers define no reaction to this code", call.method, describe(call.err))
				}
			})
		},
	},
	{
		Number: 88, Level: Must, Title: "CreateMachine rejects invalid credentials with a matching code", Places: []string{"MCM CreateMachine 12"},
		check: func(p *probe) {
			bad := p.provider.Variants.BadSecret
			p.need(bad != nil, "a Secret that the provider does not accept")
			p.wantCreate(p.target("a").with(bad), codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.FailedPrecondition)
		},
	},
	{
		Number: 89, Level: Must, Title: "a call returns a response or an error", Places: []string{"driver Errors 2"},
		needs: []int{created},
		check: func(p *probe) {
			p.callAll()
			for _, call := range p.calls {
				if call.empty {
					p.failf("%s returned neither a response nor an error", call.method)
				}
			}
		},
	},
	{
		Number: 90, Level: May, Title: "the response next to an error may be nil", Places: []string{"driver Errors 2"},
		Unchecked: "a permission",
	},
	{
		Number: 91, Level: Must, Title: "LastKnownState is a short text", Places: []string{"driver CreateMachineResponse"},
		needs: []int{created},
		check: func(p *probe) {
			if resp, err := p.create(p.ctx, p.target("a")); err == nil && resp != nil && (!utf8.ValidString(resp.LastKnownState) || len(resp.LastKnownState) > 64<<10) {
				p.failf("LastKnownState has %d bytes and is not stored; it must be UTF-8 and at most 64 KiB long", len(resp.LastKnownState))
			}
		},
	},
	{
		Number: 92, Level: Should, Title: "logs contain no secrets", Places: []string{"driver Logging 1", "MCM Logging 4"},
		needs: []int{created, callsReturn},
		check: func(p *probe) {
			p.callAll()
			p.provoke()
			for _, call := range p.calls {
				if slices.ContainsFunc(call.logged, p.hasSecret) {
					p.failf("%s logged a value of the Secret", call.method)
				}
			}
		},
	},
	{
		Number: 93, Level: May, Title: "messages may be shown to users",
		Places: []string{
			"MCM CreateMachine 14", "MCM DeleteMachine 13", "MCM GetMachineStatus 10", "MCM ListMachines 9", "MCM GetVolumeIDs 6",
			"MCM GenerateMachineClassForMigration 6",
		},
		Unchecked: "a permission for the controllers",
	},
}

// wantEnded expects CreateMachine to return a code and to create no VM if its context is done.
func (p *probe) wantEnded(ctx context.Context, want codes.Code) {
	before := p.instances()
	p.wantCreateIn(ctx, p.target("a"), want)
	if left := p.added(before); len(left) > 0 {
		p.failf("VMs were created: %v", left)
	}
}

func (p *probe) wantCreateIn(ctx context.Context, t target, want codes.Code) {
	if _, err := p.create(ctx, t); !is(err, want) {
		p.failf("CreateMachine returned %s, want %s", describe(err), want)
	}
}

// provoke makes calls that fail and create no VM.
func (p *probe) provoke() {
	ctx := p.ctx
	defer func() { p.ctx = ctx }()
	a := p.target("a")
	end, cancel := observe.Expired(ctx)
	defer cancel()
	for _, p.ctx = range []context.Context{observe.Canceled(ctx), end} {
		_, _ = p.create(p.ctx, a)
		p.callReadOnly(a)
		_ = p.remove(a)
	}
	p.ctx = ctx
	p.callReadOnly(a)
	p.each(p.provider.refused(), func(_ string, t target) { p.callReadOnly(t) })
	if bad := p.provider.Variants.BadSecret; bad != nil {
		p.callReadOnly(a.with(bad))
	}
}

// callReadOnly calls the methods that change nothing.
func (p *probe) callReadOnly(t target) {
	_, _ = p.tryStatus(t)
	_, _ = p.tryList(t.class, t.secret)
	_, _ = p.tryLocate(t)
	if updater, ok := driver.As[driver.Updater](p.provider.Driver); ok {
		_, _ = do(p, p.ctx, "UpdateMachine", updater.UpdateMachine, &driver.UpdateMachineRequest{
			Machine: t.machine(), MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(), DryRun: true,
		})
	}
	if domains, ok := driver.As[driver.FailureDomains](p.provider.Driver); ok {
		_, _ = do(p, p.ctx, "ListFailureDomains", domains.ListFailureDomains, &driver.ListFailureDomainsRequest{
			MachineClass: t.class.DeepCopy(), Secret: t.secret.DeepCopy(),
		})
	}
	if identifier, ok := driver.As[driver.VolumeIdentifier](p.provider.Driver); ok {
		_, _ = do(p, p.ctx, "GetVolumeIDs", identifier.GetVolumeIDs, &driver.GetVolumeIDsRequest{})
	}
}

// eachError calls a function with each failed call of provoke.
func (p *probe) eachError(look func(record)) {
	p.provoke()
	for _, call := range p.calls {
		if call.err != nil {
			look(call)
		}
	}
}

// rounds is how often each method is called to find goroutines that keep running. Connections to a provider also have
// goroutines, but their number does not grow with each call.
const rounds = 10

func leavesNoGoroutine(p *probe) {
	ctx := p.ctx
	p.ctx = observe.Canceled(ctx)
	for range rounds {
		p.callReadOnly(p.target("a"))
	}
	p.ctx = ctx
	left := 0
	limited, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	p.poll(limited, func(context.Context) bool {
		left = observe.Goroutines(p.label())
		return left < rounds
	})
	if left >= rounds {
		p.failf("%d goroutines are still running after %d calls of each method", left, rounds)
	}
}

// hasSecret reports whether a text contains a value of the Secret.
func (p *probe) hasSecret(text string) bool {
	return slices.ContainsFunc(p.provider.secretTexts(), func(secret string) bool { return strings.Contains(text, secret) })
}

// describe returns the code and the message of an error.
func describe(err error) string {
	if err == nil {
		return codes.OK.String()
	}
	s, _ := status.FromError(err)
	return fmt.Sprintf("%s (%s)", status.Code(err), s.Message())
}

func anyOf(want []codes.Code) string {
	var names []string
	for _, code := range want {
		names = append(names, code.String())
	}
	return strings.Join(names, " or ")
}

// packaging is the reason why rules about programs have no check.
const packaging = "this is about how a provider's program is packaged and documented, which calls of a driver do not show"

var processRules = []Rule{
	{
		Number: 94, Level: Should, Title: "a provider is packaged as a container image",
		Places: []string{
			"MCM Supervised Lifecycle Management 1", "MCM Supervised Lifecycle Management 2", "MCM Supervised Lifecycle Management 3", "MCM Supervised Lifecycle Management 4",
		},
		Unchecked: packaging,
	},
	{
		Number: 95, Level: Must, Title: "environment variables with the prefix MC_ are reserved",
		Places:    []string{"MCM Environment Variables 1", "MCM Environment Variables 2", "MCM Environment Variables 3", "MCM Environment Variables 4"},
		Unchecked: packaging,
	},
	{
		Number: 96, Level: Should, Title: "logs go to standard output and standard error",
		Places:    []string{"MCM Logging 1", "MCM Logging 2", "MCM Logging 3"},
		Unchecked: "the program that contains the driver decides where its logs go; the driver gets a logger",
	},
	{
		Number: 97, Level: Should, Title: "a program exits if its configuration is invalid, and its requirements are documented",
		Places:    []string{"MCM Available Services 3", "MCM Linux Capabilities 1", "MCM Cgroup Isolation 1", "MCM Resource Requirements 1"},
		Unchecked: packaging,
	},
}
