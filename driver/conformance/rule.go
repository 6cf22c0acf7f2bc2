package conformance

import (
	"fmt"
	"slices"
)

// Level is the requirement level of a rule, as defined by RFC 2119.
type Level string

// The levels.
const (
	Must   Level = "MUST"
	Should Level = "SHOULD"
	May    Level = "MAY"
)

// Rule is a normative sentence of the contract.
type Rule struct {
	// Number of the rule. It never changes.
	Number int
	// Level of the rule.
	Level Level
	// Title is the rule in a few words.
	Title string
	// Places of the contract that the rule covers: "driver SECTION N" is the N-th item of a section or of a comment
	// in package driver; "MCM SECTION N" is the N-th normative sentence of a section of MCM's document on machine
	// error codes.
	Places []string
	// Departs is the place in MCM's document from which the rule departs. A driver that follows that sentence
	// literally breaks the rule. Empty for all but a few rules.
	Departs string
	// Unchecked is the reason why the rule has no check. It is empty if the rule has one.
	Unchecked string

	// needs are the numbers of the rules that must pass for the check to be meaningful.
	needs []int
	check func(*probe)
}

// ID returns the number in the form "R07".
func (r Rule) ID() string { return fmt.Sprintf("R%02d", r.Number) }

// Name returns the ID and the title.
func (r Rule) Name() string { return r.ID() + " " + r.Title }

// Rules returns all rules, sorted by number.
func Rules() []Rule {
	all := slices.Concat(identityRules, requestRules, createRules, deleteRules, statusRules, listRules,
		groupRules, initializeRules, volumeRules, migrationRules, domainRules, locationRules, updateRules, contextRules, errorRules, processRules)
	slices.SortFunc(all, func(a, b Rule) int { return a.Number - b.Number })
	return all
}

// Checked reports whether the rule has a check.
func (r Rule) Checked() bool { return r.check != nil }
