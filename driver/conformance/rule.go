package conformance

import (
	"fmt"
	"slices"
)

// Level says how binding a rule is, in the words of RFC 2119.
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
	// Places of the contract where the rule is from: "driver SECTION N" is the N-th item of a
	// section or of a comment in package driver; "MCM SECTION N" is the N-th normative sentence
	// of a section of MCM's document on machine error codes.
	Places []string
	// Unchecked is why there is no check. Empty if there is one.
	Unchecked string

	// needs are the numbers of rules without which the check cannot tell anything.
	needs []int
	check func(*probe)
}

// ID is the number as it is written: "R07".
func (r Rule) ID() string { return fmt.Sprintf("R%02d", r.Number) }

// Name is the number and the title.
func (r Rule) Name() string { return r.ID() + " " + r.Title }

// Rules returns all rules, by number.
func Rules() []Rule {
	all := slices.Concat(identityRules, requestRules, createRules, deleteRules, statusRules, listRules,
		groupRules, initializeRules, volumeRules, migrationRules, domainRules, locationRules, updateRules, contextRules, errorRules, processRules)
	slices.SortFunc(all, func(a, b Rule) int { return a.Number - b.Number })
	return all
}

// Checked reports whether the rule has a check.
func (r Rule) Checked() bool { return r.check != nil }
