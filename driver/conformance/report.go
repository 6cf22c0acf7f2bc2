package conformance

import (
	"fmt"
	"io"
	"strings"
)

// Outcome is what became of a rule.
type Outcome string

// The outcomes.
const (
	// Passed rules are kept, as far as the check can tell.
	Passed Outcome = "passed"
	// Failed rules are broken.
	Failed Outcome = "failed"
	// Skipped rules were not checked; Result.Details say why.
	Skipped Outcome = "skipped"
	// Unchecked rules have no check; Result.Details say why.
	Unchecked Outcome = "unchecked"
)

// Result is the outcome of one rule.
type Result struct {
	Rule    string  `json:"rule"`
	Level   Level   `json:"level"`
	Title   string  `json:"title"`
	Outcome Outcome `json:"outcome"`
	// Details say what was broken, or why nothing was checked.
	Details []string `json:"details,omitempty"`
}

// Report is the result of a run.
type Report struct {
	Results []Result `json:"results"`
	// Created is the number of machines that were created.
	Created int `json:"machinesCreated"`
	// Left are machines that may still exist, with the reason.
	Left []string `json:"left,omitempty"`
	// Interrupted says that the run ended before all rules were checked.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Count returns the number of rules with an outcome.
func (r Report) Count(outcome Outcome) int {
	count := 0
	for _, result := range r.Results {
		if result.Outcome == outcome {
			count++
		}
	}
	return count
}

// Conforms reports whether the run was complete, no rule failed, and nothing was left.
func (r Report) Conforms() bool {
	return r.Count(Failed) == 0 && len(r.Left) == 0 && !r.Interrupted
}

// Print writes one result in one or more lines.
func (r Result) Print(out io.Writer) error {
	text := fmt.Sprintf("%-9s %s %s (%s)\n", r.Outcome, r.Rule, r.Title, r.Level)
	for _, detail := range r.Details {
		text += "          " + strings.ReplaceAll(detail, "\n", "\n          ") + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// PrintSummary writes what became of the run: numbers, and machines that are left.
func (r Report) PrintSummary(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%d rules: %d passed, %d failed, %d skipped, %d without a check; %d machines created\n",
		len(r.Results), r.Count(Passed), r.Count(Failed), r.Count(Skipped), r.Count(Unchecked), r.Created)
	if r.Interrupted {
		text.WriteString("The run was interrupted.\n")
	}
	if len(r.Left) > 0 {
		text.WriteString("These machines may still exist; delete them by hand:\n")
		for _, left := range r.Left {
			text.WriteString("  " + left + "\n")
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}
