package confine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestRoot_Names(t *testing.T) {
	tests := map[string]struct {
		name, element, below string // rejected if empty
	}{
		"/a/b":    {name: "a/b"},
		"a/b":     {name: "a/b"},
		"a":       {name: "a", element: "a"},
		"..a":     {name: "..a", element: "..a"},
		"/f/a/b":  {name: "f/a/b", below: "a/b"},
		"/f/..a":  {name: "f/..a", below: "..a"},
		"/fa":     {name: "fa"},
		"/f":      {name: "f"},
		"":        {},
		".":       {},
		"/":       {},
		"//a":     {},
		"/a/":     {},
		"/a//b":   {},
		"/./a":    {},
		"..":      {},
		"../a":    {},
		"/../a":   {},
		"a/..":    {},
		"a/../b":  {},
		"/f/../a": {},
		"a/../..": {},
		"a\x00b":  {},
	}
	for path, test := range tests {
		below := func(path string) (string, error) { return Below("/f", path) }
		for _, function := range []struct {
			name string
			call func(string) (string, error)
			want string
		}{{"Name", Name, test.name}, {"Element", Element, test.element}, {"Below", below, test.below}} {
			got, err := function.call(path)
			var outside *OutsideError
			if got != function.want || function.want != "" && err != nil || function.want == "" && !errors.As(err, &outside) {
				t.Errorf("%s of %q is %q, %v; want %q", function.name, path, got, err, function.want)
			}
		}
	}
}

func TestRoot_Remove(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	inside := filepath.Join(dir, "inside")
	for _, path := range []string{outside, filepath.Join(inside, "a", "b")} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../outside", filepath.Join(inside, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "link", "missing"} {
		if err := Remove(inside, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var wrong *OutsideError
	for _, name := range []string{"../outside", "..", ".", "", "a/b"} {
		if err := Remove(inside, name); !errors.As(err, &wrong) {
			t.Errorf("%q gives %v", name, err)
		}
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(inside); err != nil || len(left) != 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
}
