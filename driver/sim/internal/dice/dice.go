// Package dice makes random decisions that depend only on a seed and on names, not on the order of calls.
package dice

import (
	"hash/fnv"
	"math"
	"time"
)

// Hash returns a number for the given texts. All random decisions depend on it.
func Hash(texts ...string) uint64 {
	h := fnv.New64a()
	for _, text := range texts {
		h.Write([]byte(text))
		h.Write([]byte{0})
	}
	// FNV leaves the high bits of short inputs similar; this spreads them.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Chance returns Hash as a number in [0, 1).
func Chance(texts ...string) float64 {
	return float64(Hash(texts...)>>11) / (1 << 53)
}

// Distribution is a distribution of durations.
type Distribution string

// The distributions.
const (
	// Uniform makes all values within the jitter equally likely.
	Uniform Distribution = ""
	// Exponential has the duration as its mean. One value in twenty is at least three times the mean. Values are
	// limited to ten times the mean.
	Exponential Distribution = "exponential"
	// LongTail makes one value in twenty ten times as long; the others vary as with Uniform.
	LongTail Distribution = "longTail"
)

// Valid reports whether d is one of the distributions.
func (d Distribution) Valid() bool { return d == Uniform || d == Exponential || d == LongTail }

const (
	most     = 10.0
	tailRate = 0.05
)

// Spread returns a duration for roll, a number in [0, 1). Jitter is the maximum fraction by which Uniform shortens
// or lengthens the duration.
func (d Distribution) Spread(mean time.Duration, jitter, roll float64) time.Duration {
	factor := 1.0
	switch d {
	case Exponential:
		factor = min(most, -math.Log(1-roll))
	case LongTail:
		if roll >= 1-tailRate {
			return time.Duration(float64(mean) * most)
		}
		roll /= 1 - tailRate
		fallthrough
	default:
		factor += jitter * (2*roll - 1)
	}
	return time.Duration(float64(mean) * factor)
}
