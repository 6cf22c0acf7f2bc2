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

// T is what a run needs of package testing: *testing.T has it.
type T[S any] interface {
	Run(name string, f func(S)) bool
	Context() context.Context
	Helper()
	Error(values ...any)
	Log(values ...any)
	Skip(values ...any)
}

// Run checks all rules, each as a subtest, with a provider of its own from the factory.
// A subtest without anything to check is skipped. It is called as
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

// Prefix is what the names of all machines of the checks begin with.
const Prefix = "cf-"

// Options limit a run of [Check]. The zero value checks all rules.
type Options struct {
	// Run and Skip select rules by ID and title, as "R07 …". Nil means all, and none.
	Run, Skip *regexp.Regexp
	// Name follows Prefix in the names of the machines, so that those of a run that was killed can
	// be found. Empty means a random one.
	Name string
	// MaxMachines is how many machines may be created in total. Rules that need more are skipped.
	// Zero means any number.
	MaxMachines int
	// Timeout is the deadline of a call, and how long a deletion may take. Zero means ten
	// minutes, which is what the controllers give a call.
	Timeout time.Duration
	// Began is called before a rule is checked, and Done with its result. Both are optional.
	Began func(Rule)
	Done  func(Result)
}

const defaultTimeout = 10 * time.Minute

// Check checks the selected rules against a provider, one after another. When ctx ends it deletes
// the machines of the current rule, and returns. The error says that nothing could be checked.
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
		result := s.result(ctx, provider, rule)
		report.Results = append(report.Results, result)
		if options.Done != nil {
			options.Done(result)
		}
	}
	slices.SortFunc(report.Results, func(a, b Result) int { return cmp.Compare(a.Rule, b.Rule) })
	report.Created, report.Left = s.created, s.takeLeft()
	report.Interrupted = report.Interrupted || ctx.Err() != nil
	return report, nil
}

// inOrder puts the rules that a rule needs before it.
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

func (p Provider) validate() error {
	switch {
	case p.Driver == nil:
		return errors.New("there is no driver to check")
	case p.Class == nil:
		return errors.New("there is no class: the checks create machines of one")
	}
	return nil
}

// suite is what the rules of a run have in common.
type suite struct {
	options Options
	// name is part of the names of all machines of the run.
	name     string
	failed   map[int]bool
	created  int
	left     []string
	existing map[string]bool // machines that were created and are not known to be gone
}

func newSuite(options Options) (*suite, error) {
	if options.MaxMachines < 0 {
		return nil, fmt.Errorf("the number of machines must not be negative: %d", options.MaxMachines)
	}
	options.Timeout = cmp.Or(options.Timeout, defaultTimeout)
	return &suite{options: options, name: cmp.Or(options.Name, utilrand.String(5)), failed: map[int]bool{}, existing: map[string]bool{}}, nil
}

func (s *suite) takeLeft() []string {
	left := s.left
	s.left = nil
	return left
}

// result is the outcome of a rule, checked or not.
func (s *suite) result(ctx context.Context, provider Provider, rule Rule) Result {
	if rule.Unchecked != "" {
		return rule.result(Unchecked, rule.Unchecked)
	}
	if s.options.Began != nil {
		s.options.Began(rule)
	}
	return s.run(ctx, provider, rule)
}

func (r Rule) result(outcome Outcome, details ...string) Result {
	return Result{Rule: r.ID(), Level: r.Level, Title: r.Title, Outcome: outcome, Details: details}
}

// run checks a rule, and deletes what it has created.
func (s *suite) run(ctx context.Context, provider Provider, rule Rule) Result {
	if err := provider.validate(); err != nil {
		return rule.result(Failed, err.Error())
	}
	if i := slices.IndexFunc(rule.needs, func(n int) bool { return s.failed[n] }); i >= 0 {
		return rule.result(Skipped, fmt.Sprintf("it cannot be told while %s fails", Rule{Number: rule.needs[i]}.ID()))
	}
	if provider.Secret == nil {
		provider.Secret = &corev1.Secret{}
	}
	p := &probe{ctx: ctx, suite: s, rule: rule, provider: provider}
	result := p.run()
	p.cleanUp()
	if result.Outcome == Failed && ctx.Err() != nil {
		result = rule.result(Skipped, "the run was interrupted")
	}
	s.failed[rule.Number] = result.Outcome == Failed
	return result
}
