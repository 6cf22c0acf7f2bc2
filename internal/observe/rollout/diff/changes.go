package diff

import (
	"cmp"
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Change is a field that differs.
type Change struct {
	// Path is the path of the field within the object.
	Path string
	// From and To are the values as JSON, or "" if the field is absent.
	From, To string
}

// changesOf returns the fields below a path that differ, sorted by path. Lists are compared as a
// whole.
func changesOf(path string, from, to any) []Change {
	if reflect.DeepEqual(from, to) {
		return nil
	}
	before, wasMap := from.(map[string]any)
	after, isMap := to.(map[string]any)
	if (wasMap || from == nil) && (isMap || to == nil) && len(before)+len(after) > 0 {
		var all []Change
		for key := range before {
			all = append(all, changesOf(below(path, key), before[key], after[key])...)
		}
		for key := range after {
			if _, both := before[key]; !both {
				all = append(all, changesOf(below(path, key), nil, after[key])...)
			}
		}
		slices.SortFunc(all, func(a, b Change) int { return cmp.Compare(a.Path, b.Path) })
		return all
	}
	return []Change{{Path: path, From: value(from), To: value(to)}}
}

// plain matches keys that need no quotes in a path.
var plain = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// below returns the path of a key of an object, in the syntax of kubectl's JSONPath.
func below(path, key string) string {
	if plain.MatchString(key) {
		return strings.TrimPrefix(path+"."+key, ".")
	}
	return path + "['" + key + "']"
}

func value(of any) string {
	if of == nil {
		return ""
	}
	text, _ := json.Marshal(of) // it was read from JSON
	return string(text)
}
