package layers

import (
	"fmt"
	"slices"
	"strings"
)

// ours is what every import path of this repository begins with.
const ours = "github.com/millwright-dev/millwright"

// goPackage is one folder of Go files, and what they import.
type goPackage struct {
	folder string
	// imports holds every import path; the value reports whether only tests use it.
	imports map[string]bool
}

// violations lists what the packages do against the rules, in a stable order.
func violations(rules []rule, packages []goPackage) []string {
	var found []string
	for _, pkg := range packages {
		r, home, ok := ruleOf(rules, pkg.folder)
		if !ok {
			found = append(found, fmt.Sprintf("%s is in no layer: give it a row in rules_test.go", pkg.folder))
			continue
		}
		for path, onlyTests := range pkg.imports {
			if !r.allows(home, path, onlyTests) {
				found = append(found, fmt.Sprintf("%s must not import %s", pkg.folder, path))
			}
		}
	}
	slices.Sort(found)
	return found
}

// ruleOf finds the rule of a folder and which of the rule's folders it is in. The
// longest path wins.
func ruleOf(rules []rule, folder string) (best rule, home string, ok bool) {
	for _, r := range rules {
		for _, from := range r.from {
			if within(folder, from) && len(from) > len(home) {
				best, home, ok = r, from, true
			}
		}
	}
	return best, home, ok
}

// allows reports whether a package in the folder home, to which the rule belongs, may
// import path.
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

// within reports whether path is prefix or lies below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}
