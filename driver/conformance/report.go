package conformance

import (
	"fmt"
	"io"
	"strings"
)

// Outcome is the outcome of a rule.
type Outcome string

// The outcomes.
const (
	// Passed means that the driver follows the rule, as far as the check can determine.
	Passed Outcome = "passed"
	// Failed means that the driver breaks the rule.
	Failed Outcome = "failed"
	// Skipped means that the rule was not checked; Result.Details gives the reason.
	Skipped Outcome = "skipped"
	// Unchecked means that the rule has no check; Result.Details gives the reason.
	Unchecked Outcome = "unchecked"
)

// Result is the outcome of one rule.
type Result struct {
	Rule  string `json:"rule"`
	Level Level  `json:"level"`
	Title string `json:"title"`
	// Departs is the place in MCM's document from which the rule departs, or empty.
	Departs string  `json:"departs,omitempty"`
	Outcome Outcome `json:"outcome"`
	// Details describe how the rule was broken, or why it was not checked.
	Details []string `json:"details,omitempty"`
}

// Report is the result of a run.
type Report struct {
	Results []Result `json:"results"`
	// Created is the number of machines that were created.
	Created int `json:"machinesCreated"`
	// Left are machines that may still exist, each with the reason.
	Left []string `json:"left,omitempty"`
	// Interrupted is true if the run stopped before all rules were checked.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Count returns the number of rules with the given outcome.
func (r Report) Count(outcome Outcome) int {
	count := 0
	for _, result := range r.Results {
		if result.Outcome == outcome {
			count++
		}
	}
	return count
}

// Conforms reports whether the run was complete, no rule failed, and no machine was left.
func (r Report) Conforms() bool {
	return r.Count(Failed) == 0 && len(r.Left) == 0 && !r.Interrupted
}

// Print writes one result in one or more lines.
func (r Result) Print(out io.Writer) error {
	level := string(r.Level)
	if r.Departs != "" {
		level += ", departs from " + r.Departs
	}
	text := fmt.Sprintf("%-9s %s %s (%s)\n", r.Outcome, r.Rule, r.Title, level)
	for _, detail := range r.Details {
		text += "          " + strings.ReplaceAll(detail, "\n", "\n          ") + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// PrintSummary writes the counts and the machines that may still exist.
func (r Report) PrintSummary(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%d rules: %d passed, %d failed, %d skipped, %d without a check; %d machines created\n",
		len(r.Results), r.Count(Passed), r.Count(Failed), r.Count(Skipped), r.Count(Unchecked), r.Created)
	if r.Interrupted {
		text.WriteString("The run was interrupted.\n")
	}
	if len(r.Left) > 0 {
		text.WriteString("These machines may still exist; delete them manually:\n")
		for _, left := range r.Left {
			text.WriteString("  " + left + "\n")
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}
