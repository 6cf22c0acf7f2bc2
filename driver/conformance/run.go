package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
)

// T is the part of *testing.T that [Run] uses.
type T[S any] interface {
	Run(name string, f func(S)) bool
	Context() context.Context
	Helper()
	Error(values ...any)
	Log(values ...any)
	Skip(values ...any)
}

// Run checks each rule in a subtest, with a new provider from the factory. A subtest that has nothing to check is
// skipped. Call it as follows:
//
//	conformance.Run(t, func(t *testing.T) conformance.Provider { … })
func Run[S T[S]](t S, factory func(S) Provider) {
	t.Helper()
	s, err := newSuite(Options{})
	if err != nil {
		t.Error(err)
		return
	}
	for _, rule := range inOrder(Rules()) {
		t.Run(rule.Name(), func(t S) {
			t.Helper()
			if rule.Unchecked != "" {
				t.Skip(rule.Unchecked)
				return
			}
			result := s.run(t.Context(), factory(t), rule)
			for _, left := range s.takeLeft() {
				t.Log("left: " + left)
			}
			switch details := strings.Join(result.Details, "\n"); result.Outcome {
			case Failed:
				t.Error(rule.Name() + ":\n" + details)
			case Skipped:
				t.Skip(details)
			}
		})
	}
}

// Prefix is the prefix of the names of all machines that the checks create.
const Prefix = "cf-"

// Options limit a run of [Check]. The zero value checks all rules.
type Options struct {
	// Run and Skip select rules by ID and title, as in "R07 …". If nil, Run selects all rules and Skip none.
	Run, Skip *regexp.Regexp
	// Name follows Prefix in the names of the machines, so that machines of a killed run can be
	// found. If empty, a random name is used.
	Name string
	// MaxMachines is the maximum number of machines to create in total. Rules that need more are skipped.
	// Zero means no limit.
	MaxMachines int
	// Timeout is the timeout of a call and of a deletion. Zero means ten minutes, the timeout that
	// the controllers use for calls.
	Timeout time.Duration
	// RuleTimeout limits the check of a rule, without the deletion of its machines. A rule whose check was stopped
	// before the driver broke it is skipped. Zero means no limit.
	RuleTimeout time.Duration
	// Earlier are results of an earlier run. Rules that passed or failed there are not checked again; their results
	// become part of the report.
	Earlier []Result
	// Began is called before a rule is checked, and Done with its result afterwards. Both are optional.
	Began func(Rule)
	Done  func(Result)
}

const defaultTimeout = 10 * time.Minute

// Check checks the selected rules against a provider, one after another. When ctx is done, it deletes the machines
// of the current rule and returns. It returns an error if it could not check any rule.
func Check(ctx context.Context, provider Provider, options Options) (Report, error) {
	s, err := newSuite(options)
	if err == nil {
		err = provider.validate()
	}
	if err != nil {
		return Report{}, err
	}
	var report Report
	for _, rule := range inOrder(Rules()) {
		if !options.selects(rule) {
			continue
		}
		if ctx.Err() != nil {
			report.Interrupted = true
			break
		}
		result, known := options.earlier(rule)
		if !known {
			result = s.result(ctx, provider, rule)
		}
		s.failed[rule.Number] = result.Outcome == Failed
		report.Results = append(report.Results, result)
		if options.Done != nil && !known {
			options.Done(result)
		}
	}
	slices.SortFunc(report.Results, func(a, b Result) int { return cmp.Compare(a.Rule, b.Rule) })
	report.Created, report.Left = s.created, s.takeLeft()
	report.Interrupted = report.Interrupted || ctx.Err() != nil
	return report, nil
}

// inOrder sorts rules so that each one follows the rules that it needs.
func inOrder(rules []Rule) (ordered []Rule) {
	placed := map[int]bool{}
	var place func(Rule)
	place = func(rule Rule) {
		if placed[rule.Number] {
			return
		}
		placed[rule.Number] = true
		for _, other := range rules {
			if slices.Contains(rule.needs, other.Number) {
				place(other)
			}
		}
		ordered = append(ordered, rule)
	}
	for _, rule := range rules {
		place(rule)
	}
	return ordered
}

func (o Options) selects(rule Rule) bool {
	return (o.Run == nil || o.Run.MatchString(rule.Name())) && (o.Skip == nil || !o.Skip.MatchString(rule.Name()))
}

// earlier returns the result of a rule in an earlier run, and whether it passed or failed there.
func (o Options) earlier(rule Rule) (Result, bool) {
	i := slices.IndexFunc(o.Earlier, func(r Result) bool {
		return r.Rule == rule.ID() && (r.Outcome == Passed || r.Outcome == Failed)
	})
	if i < 0 {
		return Result{}, false
	}
	return o.Earlier[i], true
}

func (p Provider) validate() error {
	switch {
	case p.Driver == nil:
		return errors.New("provider has no driver to check")
	case p.Class == nil:
		return errors.New("provider has no machine class; the checks need one to create machines")
	}
	return nil
}

// suite is the state that the rules of a run share.
type suite struct {
	options Options
	// name is part of the names of all machines of the run.
	name     string
	failed   map[int]bool
	created  int
	left     []string
	existing map[string]bool // created machines that may still exist
}

func newSuite(options Options) (*suite, error) {
	if options.MaxMachines < 0 {
		return nil, fmt.Errorf("invalid maximum number of machines %d; use 0 for no limit, or a positive number", options.MaxMachines)
	}
	options.Timeout = cmp.Or(options.Timeout, defaultTimeout)
	return &suite{options: options, name: cmp.Or(options.Name, utilrand.String(5)), failed: map[int]bool{}, existing: map[string]bool{}}, nil
}

func (s *suite) takeLeft() []string {
	left := s.left
	s.left = nil
	return left
}

// result returns the outcome of a rule, whether or not it has a check.
func (s *suite) result(ctx context.Context, provider Provider, rule Rule) Result {
	if rule.Unchecked != "" {
		return rule.result(Unchecked, rule.Unchecked)
	}
	if s.options.Began != nil {
		s.options.Began(rule)
	}
	return s.run(ctx, provider, rule)
}

// limit returns the context of a rule's check.
func (s *suite) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.options.RuleTimeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, s.options.RuleTimeout)
}

func (r Rule) result(outcome Outcome, details ...string) Result {
	return Result{Rule: r.ID(), Level: r.Level, Title: r.Title, Departs: r.Departs, Outcome: outcome, Details: details}
}

// run checks a rule and deletes the machines that the check created.
func (s *suite) run(ctx context.Context, provider Provider, rule Rule) Result {
	if err := provider.validate(); err != nil {
		return rule.result(Failed, err.Error())
	}
	if i := slices.IndexFunc(rule.needs, func(n int) bool { return s.failed[n] }); i >= 0 {
		return rule.result(Skipped, fmt.Sprintf("cannot be checked while %s fails", Rule{Number: rule.needs[i]}.ID()))
	}
	if provider.Secret == nil {
		provider.Secret = &corev1.Secret{}
	}
	limited, cancel := s.limit(ctx)
	defer cancel()
	p := &probe{ctx: limited, suite: s, rule: rule, provider: provider}
	result := p.run()
	if result.Outcome != Skipped && !p.broken && limited.Err() != nil && ctx.Err() == nil {
		result = rule.result(Skipped, fmt.Sprintf("the check was stopped after %v, the time limit of a rule", s.options.RuleTimeout))
	}
	p.cleanUp()
	if result.Outcome == Failed && ctx.Err() != nil {
		result = rule.result(Skipped, "the run was interrupted")
	}
	s.failed[rule.Number] = result.Outcome == Failed
	return result
}
