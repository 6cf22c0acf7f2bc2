// Package sample has conditions that its test guards, and others that it does not.
package sample

// Clamp returns n, or a limit that n exceeds.
func Clamp(n int) int {
	if n > 10 {
		return 10
	}
	if n < 0 && n > -100 {
		return 0
	}
	return n
}

// Untested is not called by any test.
func Untested(on bool) string {
	switch {
	case !on:
		return "off"
	}
	return "on"
}
