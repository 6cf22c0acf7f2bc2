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
	// survived is why the guard does not count as tested. It is empty if the test fails without the guard.
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

// check switches the selected guards off one by one, prints each result, and fails if a guard survives.
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
		group.Go(func() error { return o.checkPackage(groupCtx, directory, byPackage[directory]) })
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
	together, single := o.bundles(mutants)
	for _, bundle := range together {
		failed, err := o.checkBundle(ctx, directory, bundle)
		if err != nil {
			return err
		}
		single = append(single, failed...)
	}
	if len(single) == 0 {
		return ctx.Err()
	}
	unchanged, cleanup, out, err := o.mutated(ctx, directory, nil, true)
	defer cleanup()
	if err != nil {
		return fmt.Errorf("compiling the tests of %s: %w: %s", directory, err, out)
	}
	baselines := map[string]string{}
	for _, m := range single {
		if m.survived = o.baseline(ctx, unchanged, m, baselines); m.survived == "" {
			o.checkSingle(ctx, directory, m)
		}
		fmt.Println(m.report())
	}
	return ctx.Err()
}

// skipped matches a skipped test, but not a skipped subtest.
var skipped = regexp.MustCompile(`(?m)^--- SKIP: `)

// baseline runs the test of a mutant with all guards on. It returns why the test cannot show anything, or an empty
// string. It runs a test that several mutants have only once; known has the results by test.
func (o options) baseline(ctx context.Context, binary string, m *mutant, known map[string]string) string {
	problem, found := known[m.Test]
	if found {
		return problem
	}
	switch out, err := o.run(ctx, binary, m.guard, "", "-test.v"); {
	case err != nil:
		problem = "the test fails with the guard on: " + last(out)
	case bytes.Contains(out, []byte("no tests to run")):
		problem = "the test does not exist"
	case skipped.Match(out):
		problem = "the test is skipped: " + last(out)
	}
	known[m.Test] = problem
	return problem
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
			fmt.Println(m.report())
			continue
		}
		together, edits = append(together, []*mutant{m}), append(edits, edit)
	}
	return together, single
}

// checkBundle checks mutants that are compiled together. If they do not compile, it divides them, and returns those that
// must be compiled alone.
func (o options) checkBundle(ctx context.Context, directory string, bundle []*mutant) (single []*mutant, err error) {
	binary, cleanup, _, err := o.mutated(ctx, directory, bundle, false)
	defer cleanup()
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && len(bundle) == 1:
		return bundle, nil
	case err != nil:
		half := len(bundle) / 2
		for _, part := range [][]*mutant{bundle[:half], bundle[half:]} {
			failed, err := o.checkBundle(ctx, directory, part)
			if err != nil {
				return nil, err
			}
			single = append(single, failed...)
		}
		return single, nil
	}
	baselines := map[string]string{}
	for _, m := range bundle {
		if m.survived = o.baseline(ctx, binary, m, baselines); m.survived == "" {
			o.try(ctx, binary, m)
		}
		fmt.Println(m.report())
	}
	return nil, nil
}

// checkSingle checks a mutant that is compiled alone.
func (o options) checkSingle(ctx context.Context, directory string, m *mutant) {
	binary, cleanup, out, err := o.mutated(ctx, directory, []*mutant{m}, true)
	defer cleanup()
	if err != nil {
		m.survived = fmt.Sprintf("the edit does not compile: %v: %s", err, last(out))
		return
	}
	o.try(ctx, binary, m)
}

// try runs the test of a mutant with the guard off.
func (o options) try(ctx context.Context, binary string, m *mutant) {
	if _, err := o.run(ctx, binary, m.guard, m.name); err == nil {
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

// build compiles the tests of a package with an overlay.
func (o options) build(ctx context.Context, directory, binary, overlay string) ([]byte, error) {
	module, err := o.moduleOf(directory)
	if err != nil {
		return nil, err
	}
	relative, err := filepath.Rel(module, filepath.Join(o.root, directory))
	if err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s", "-overlay", overlay, "-o", binary, "./"+relative)
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

// run runs the test of a guard in the directory of its package, and returns an error if it fails. Off is the name of
// the guard that is switched off, or empty.
func (o options) run(ctx context.Context, binary string, g guard, off string, flags ...string) ([]byte, error) {
	pattern := "^" + strings.ReplaceAll(g.Test, "/", "$/^") + "$"
	arguments := append([]string{"-test.run", pattern, "-test.failfast", "-test.timeout", o.timeout.String()}, flags...)
	run := exec.CommandContext(ctx, binary, arguments...)
	run.Dir = filepath.Join(o.root, g.directory())
	run.Env = append(os.Environ(), "MILLWRIGHT_TIER=all", "GUARD_OFF="+off)
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
