package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// mutant is a guard with the result of switching it off.
type mutant struct {
	guard
	// name is the value of the environment variable GUARD_OFF that switches the guard off.
	name string
	// attempts are the rows of the threat model with this guard.
	attempts []string
	// survived says why the guard does not count as tested. It is empty if the test fails without the guard.
	survived string
}

// mutants returns the guards that the options select. Guards of several rows are listed once.
func (o options) mutants(table []section) []*mutant {
	var selected []*mutant
	known := map[guard]*mutant{}
	for _, s := range table {
		for _, r := range s.Rows {
			for _, g := range r.Guards {
				matches := o.only.MatchString(strings.Join([]string{s.Title, r.Attempt, g.File, g.directory(), g.Test}, "\n"))
				if !matches || o.fast && g.Slow != "" {
					continue
				}
				if known[g] == nil {
					known[g] = &mutant{guard: g, name: fmt.Sprint(len(known) + 1)}
					selected = append(selected, known[g])
				}
				known[g].attempts = append(known[g].attempts, r.Attempt)
			}
		}
	}
	return selected
}

// check switches the selected guards off one by one, prints a table of the results, and fails if a guard survives.
func (o options) check(ctx context.Context) error {
	table, err := readTable(o.root)
	if err != nil {
		return err
	}
	mutants := o.mutants(table)
	if len(mutants) == 0 {
		return errors.New("no guard matches; see " + tablePath)
	}
	byPackage := map[string][]*mutant{}
	for _, m := range mutants {
		byPackage[m.directory()] = append(byPackage[m.directory()], m)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(max(1, runtime.NumCPU()/2)) // the go command itself compiles in parallel
	for _, directory := range slices.Sorted(maps.Keys(byPackage)) {
		group.Go(func() error {
			err := o.checkPackage(groupCtx, directory, byPackage[directory])
			for _, m := range byPackage[directory] {
				fmt.Println(m.report())
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	survivors := len(slices.DeleteFunc(mutants, func(m *mutant) bool { return m.survived == "" }))
	if survivors > 0 {
		return fmt.Errorf("guards that no test notices: %d; correct the test or the entry in %s", survivors, tablePath)
	}
	return nil
}

// report returns the result of one guard as a line.
func (m *mutant) report() string {
	result := "killed  "
	if m.survived != "" {
		result = "SURVIVED"
	}
	line := fmt.Sprintf("%s  %s: %s.%s: %s", result, m.File, m.directory(), m.Test, strings.Join(m.attempts, "; "))
	if m.survived != "" {
		line += "\n          " + m.survived
	}
	return line
}

// checkPackage checks the guards whose tests are in one package.
func (o options) checkPackage(ctx context.Context, directory string, mutants []*mutant) error {
	scratch, err := os.MkdirTemp("", "guards-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	binary := filepath.Join(scratch, "unchanged.test")
	if out, err := o.build(ctx, directory, binary, ""); err != nil {
		return fmt.Errorf("compiling the tests of %s: %w: %s", directory, err, out)
	}
	var passing []*mutant
	for _, m := range mutants {
		m.survived = o.baseline(ctx, binary, m)
		if m.survived == "" {
			passing = append(passing, m)
		}
	}
	together, single := o.bundles(passing)
	for _, bundle := range together {
		if err := o.checkBundle(ctx, directory, bundle); err != nil {
			return err
		}
	}
	for _, m := range single {
		if err := o.checkSingle(ctx, directory, m); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// skipped matches a skipped test, but not a skipped subtest.
var skipped = regexp.MustCompile(`(?m)^--- SKIP: `)

// baseline runs the test of a mutant with the guard on. It returns why the test cannot show anything, or an empty
// string.
func (o options) baseline(ctx context.Context, binary string, m *mutant) string {
	switch out, err := o.run(ctx, binary, m, "-test.v"); {
	case err != nil:
		return "the test fails with the guard on: " + last(out)
	case bytes.Contains(out, []byte("no tests to run")):
		return "the test does not exist"
	case skipped.Match(out):
		return "the test is skipped: " + last(out)
	}
	return ""
}

// bundles partitions mutants into those that can be compiled together, and the others.
func (o options) bundles(mutants []*mutant) (together [][]*mutant, single []*mutant) {
	var edits []map[string]string
next:
	for _, m := range mutants {
		source, err := os.ReadFile(filepath.Join(o.root, m.File))
		if _, ok := m.switchable(string(source), m.name); !ok || err != nil {
			single = append(single, m)
			continue
		}
		for i := range together {
			if m.apply(o.root, edits[i], false) == nil {
				together[i] = append(together[i], m)
				continue next
			}
		}
		edit := map[string]string{}
		if err := m.apply(o.root, edit, false); err != nil {
			m.survived = err.Error()
			continue
		}
		together, edits = append(together, []*mutant{m}), append(edits, edit)
	}
	return together, single
}

// checkBundle checks mutants that are compiled together. If they do not compile, it divides them.
func (o options) checkBundle(ctx context.Context, directory string, bundle []*mutant) error {
	binary, cleanup, _, err := o.mutated(ctx, directory, bundle, false)
	defer cleanup()
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		if len(bundle) == 1 {
			return o.checkSingle(ctx, directory, bundle[0])
		}
		half := len(bundle) / 2
		if err := o.checkBundle(ctx, directory, bundle[:half]); err != nil {
			return err
		}
		return o.checkBundle(ctx, directory, bundle[half:])
	}
	for _, m := range bundle {
		o.try(ctx, binary, m)
	}
	return nil
}

// checkSingle checks a mutant that is compiled alone.
func (o options) checkSingle(ctx context.Context, directory string, m *mutant) error {
	binary, cleanup, out, err := o.mutated(ctx, directory, []*mutant{m}, true)
	defer cleanup()
	if err != nil {
		m.survived = fmt.Sprintf("the edit does not compile: %v: %s", err, last(out))
		return ctx.Err()
	}
	o.try(ctx, binary, m)
	return nil
}

// try runs the test of a mutant with the guard off.
func (o options) try(ctx context.Context, binary string, m *mutant) {
	if _, err := o.run(ctx, binary, m); err == nil {
		m.survived = "the test passes with the guard off"
	}
}

// mutated compiles the tests of a package with mutants. The caller calls cleanup in any case.
func (o options) mutated(ctx context.Context, directory string, mutants []*mutant, plain bool) (binary string, cleanup func(), out []byte, err error) {
	scratch, err := os.MkdirTemp("", "guards-")
	if err != nil {
		return "", func() {}, nil, err
	}
	cleanup = func() { _ = os.RemoveAll(scratch) }
	edits, err := overlay(o.root, scratch, mutants, plain)
	if err != nil {
		return "", cleanup, nil, err
	}
	binary = filepath.Join(scratch, "mutated.test")
	out, err = o.build(ctx, directory, binary, edits)
	return binary, cleanup, out, err
}

// build compiles the tests of a package, with an overlay if it is not empty.
func (o options) build(ctx context.Context, directory, binary, overlay string) ([]byte, error) {
	arguments := []string{"test", "-c", "-vet=off", "-ldflags=-s", "-o", binary}
	if overlay != "" {
		arguments = append(arguments, "-overlay", overlay)
	}
	module, err := o.moduleOf(directory)
	if err != nil {
		return nil, err
	}
	relative, err := filepath.Rel(module, filepath.Join(o.root, directory))
	if err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", append(arguments, "./"+relative)...)
	build.Dir = module
	return build.CombinedOutput()
}

// moduleOf returns the root directory of the module of a package: the repository has several modules.
func (o options) moduleOf(directory string) (string, error) {
	at := filepath.Join(o.root, directory)
	for ; at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("package %s belongs to no module", directory)
}

// run runs the test of a mutant in the directory of its package, and returns an error if it fails.
func (o options) run(ctx context.Context, binary string, m *mutant, flags ...string) ([]byte, error) {
	pattern := "^" + strings.ReplaceAll(m.Test, "/", "$/^") + "$"
	arguments := append([]string{"-test.run", pattern, "-test.failfast", "-test.timeout", o.timeout.String()}, flags...)
	run := exec.CommandContext(ctx, binary, arguments...)
	run.Dir = filepath.Join(o.root, m.directory())
	run.Env = append(os.Environ(), "MILLWRIGHT_TIER=all")
	if len(flags) == 0 {
		run.Env = append(run.Env, "GUARD_OFF="+m.name)
	}
	return run.CombinedOutput()
}

// last returns the end of an output, as one line.
func last(out []byte) string {
	const limit = 400
	out = bytes.TrimSpace(out)
	if len(out) > limit {
		out = out[len(out)-limit:]
	}
	return strings.Join(strings.Fields(string(out)), " ")
}
