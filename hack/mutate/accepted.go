package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// acceptance counts how many survivors of each key are accepted.
type acceptance map[string]int

// readAccepted reads the file of accepted survivors: lines "KEY # REASON". Empty lines and lines that begin with # are
// ignored. A file that does not exist is empty.
func readAccepted(path string) (acceptance, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	accepted := acceptance{}
	for number, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, reason, found := strings.Cut(line, " # ")
		if !found || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: no reason given; write KEY # REASON", path, number+1)
		}
		accepted[strings.TrimSpace(key)]++
	}
	return accepted, nil
}

// take reports whether a survivor with this key is accepted. Each line of the file accepts one.
func (a acceptance) take(key string) bool {
	if a[key] == 0 {
		return false
	}
	a[key]--
	return true
}

// left returns the keys with this prefix that were not taken.
func (a acceptance) left(prefix string) []string {
	var keys []string
	for key, count := range a {
		if count > 0 && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}
