package layers

import (
	"fmt"
	"slices"
	"strings"
)

// ours is the prefix of all import paths of this repository.
const ours = "github.com/millwright-dev/millwright"

// goPackage is a directory with Go files and their imports.
type goPackage struct {
	directory string
	// imports contains all import paths. The value reports whether only tests use the path.
	imports map[string]bool
}

// violations returns all violations of the rules, in a stable order.
func violations(rules []rule, packages []goPackage) []string {
	var found []string
	for _, pkg := range packages {
		r, home, ok := ruleOf(rules, pkg.directory)
		if !ok {
			found = append(found, fmt.Sprintf("%s does not belong to a layer; add a row to rules_test.go", pkg.directory))
			continue
		}
		for path, onlyTests := range pkg.imports {
			if !r.allows(home, path, onlyTests) {
				found = append(found, fmt.Sprintf("%s must not import %s", pkg.directory, path))
			}
		}
	}
	slices.Sort(found)
	return found
}

// ruleOf returns the rule for a directory, and the directory of the rule that contains it. The longest path has
// precedence.
func ruleOf(rules []rule, directory string) (best rule, home string, ok bool) {
	for _, r := range rules {
		for _, from := range r.from {
			if within(directory, from) && len(from) > len(home) {
				best, home, ok = r, from, true
			}
		}
	}
	return best, home, ok
}

// allows reports whether a package in home, which is one of the rule's directories, may import path.
func (r rule) allows(home, path string, onlyTests bool) bool {
	target, isOurs := strings.CutPrefix(path, ours+"/")
	if isOurs && within(target, home) {
		return true
	}
	if anyWithin(target, r.never) {
		return false
	}
	return !isOurs || anyWithin(target, r.may) || onlyTests && anyWithin(target, testsMay)
}

func anyWithin(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return within(path, prefix) })
}

// within reports whether path equals prefix or is below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}
