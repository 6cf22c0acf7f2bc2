// Package sample has guards that are tested, and one that is not.
package sample

const smallest = 0

// Clamp returns the closest number to n that is not negative and at most 10.
func Clamp(n int) int {
	if n < smallest {
		return smallest
	}
	if n > 1000 {
		return 1000
	}
	if n > 10 {
		return 10
	}
	return n
}
