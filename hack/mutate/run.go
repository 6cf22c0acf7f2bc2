package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// survivors returns the mutants of a package that its tests do not notice.
func (o options) survivors(ctx context.Context, path string) ([]mutant, error) {
	scratch, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	p := program{options: o, scratch: scratch, pkg: strings.TrimPrefix(path, "./")}
	if err := p.rewrite(ctx, path); err != nil {
		return nil, err
	}
	if o.list {
		for _, m := range p.mutants {
			fmt.Printf("%d %s\n", m.number, m.key())
		}
		return nil, nil
	}
	for _, tested := range append([]string{path}, o.tests...) {
		if err := p.build(ctx, tested); err != nil {
			return nil, err
		}
	}
	return p.try(ctx)
}

// program is a mutated package with the test binaries that it is linked into.
type program struct {
	options
	scratch, pkg string
	mutants      []mutant
	binaries     []binary
}

// binary is a compiled test, and the directory in which it runs.
type binary struct {
	path, directory string
	// slow is a regular expression of the tests that run last, or empty.
	slow string
}

// rewrite writes the mutated sources of a package, and the overlay that replaces the originals.
func (p *program) rewrite(ctx context.Context, path string) error {
	out, err := command(ctx, "go", "list", "-json=Dir,Name,GoFiles", path).Output()
	if err != nil {
		return explain(err)
	}
	var listed struct {
		Dir, Name string
		GoFiles   []string
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		return err
	}
	m := mutator{pkg: p.pkg, set: token.NewFileSet(), next: 1}
	replace := map[string]string{}
	write := func(name string, text []byte) error {
		replace[filepath.Join(listed.Dir, name)] = filepath.Join(p.scratch, name)
		return os.WriteFile(filepath.Join(p.scratch, name), text, 0o600)
	}
	for _, name := range listed.GoFiles {
		text, err := m.rewrite(filepath.Join(listed.Dir, name))
		if err != nil {
			return err
		}
		if err := write(name, text); err != nil {
			return err
		}
	}
	if err := write("zz_mutant.go", fmt.Appendf(nil, support, listed.Name)); err != nil {
		return err
	}
	for _, found := range m.mutants {
		if p.only.MatchString(found.key()) {
			p.mutants = append(p.mutants, found)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(p.overlay(), overlay, 0o600)
}

func (p *program) overlay() string { return filepath.Join(p.scratch, "overlay.json") }

// build compiles the tests of a package with the mutants. A package without tests adds no binary.
func (p *program) build(ctx context.Context, tested string) error {
	directory, err := command(ctx, "go", "list", "-f", "{{.Dir}}", tested).Output()
	if err != nil {
		return explain(err)
	}
	b := binary{path: filepath.Join(p.scratch, fmt.Sprintf("%d.test", len(p.binaries))), directory: strings.TrimSpace(string(directory))}
	build := command(ctx, "go", "test", "-c", "-vet=off", "-overlay", p.overlay(), "-o", b.path, tested)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if _, err := os.Stat(b.path); err == nil {
		p.binaries = append(p.binaries, b)
	}
	return nil
}

// try runs the tests once without a mutant, to determine which conditions they evaluate, and then for each of these
// mutants.
func (p *program) try(ctx context.Context) ([]mutant, error) {
	reached, err := p.reached(ctx)
	if err != nil {
		return nil, err
	}
	noticed := make([]bool, len(p.mutants))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for i := range p.mutants {
		m := &p.mutants[i]
		if m.reached = reached[m.number] || m.change == "false" && reached[m.number-1]; !m.reached {
			continue
		}
		group.Go(func() error {
			noticed[i] = p.test(ctx, "MUTANT="+strconv.Itoa(m.number)) != nil
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var survivors []mutant
	for i, m := range p.mutants {
		if !noticed[i] {
			survivors = append(survivors, m)
		}
	}
	fmt.Printf("%s: %d mutants, %d noticed\n", p.pkg, len(p.mutants), len(p.mutants)-len(survivors))
	return survivors, nil
}

// reached returns the numbers of the conditions that the tests evaluate. It also determines which tests are slow.
func (p *program) reached(ctx context.Context) (map[int]bool, error) {
	path := filepath.Join(p.scratch, "reached")
	for i := range p.binaries {
		b := &p.binaries[i]
		out, err := p.execute(ctx, *b, "MUTANT_REACHED="+path, "-test.v", "-test.run", p.run)
		if err != nil {
			return nil, fmt.Errorf("the tests fail without any mutant: %w", err)
		}
		b.slow = slowTests(out)
	}
	numbers := map[int]bool{}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return numbers, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			numbers[n] = true
		}
	}
	return numbers, nil
}

// passed matches the result of a test, without those of its subtests, in the output of go test -v.
var passed = regexp.MustCompile(`(?m)^--- PASS: (\S+) \(([0-9.]+)s\)$`)

// slowTests returns a regular expression of the tests that take more than a quarter of a second, or an empty string if
// there are none. They run last, because other tests notice most mutants.
func slowTests(out []byte) string {
	var slow []string
	for _, test := range passed.FindAllSubmatch(out, -1) {
		if seconds, err := strconv.ParseFloat(string(test[2]), 64); err == nil && seconds > 0.25 {
			slow = append(slow, string(test[1]))
		}
	}
	if len(slow) == 0 {
		return ""
	}
	return "^(" + strings.Join(slow, "|") + ")$"
}

// test runs all tests with an additional environment variable, and returns an error if any of them fails.
func (p *program) test(ctx context.Context, variable string) error {
	for _, b := range p.binaries {
		if _, err := p.execute(ctx, b, variable, "-test.run", p.run, "-test.skip", b.slow); err != nil {
			return err
		}
	}
	for _, b := range p.binaries {
		if b.slow == "" {
			continue
		}
		if _, err := p.execute(ctx, b, variable, "-test.run", b.slow); err != nil {
			return err
		}
	}
	return nil
}

// execute runs a test binary with additional arguments and returns its output.
func (p *program) execute(ctx context.Context, b binary, variable string, arguments ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	run := command(ctx, b.path, append([]string{"-test.short", "-test.failfast"}, arguments...)...)
	run.Dir = b.directory
	run.Env = append(os.Environ(), variable)
	out, err := run.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return out, nil
}

func command(ctx context.Context, name string, arguments ...string) *exec.Cmd {
	return exec.CommandContext(ctx, name, arguments...)
}

// explain adds the output of a command to its error.
func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return err
}
