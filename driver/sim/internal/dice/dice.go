// Package dice makes random decisions that depend on a seed and on names only, not on the order
// of calls.
package dice

import (
	"hash/fnv"
	"math"
	"time"
)

// Hash returns a number for texts, on which all random decisions depend.
func Hash(texts ...string) uint64 {
	h := fnv.New64a()
	for _, text := range texts {
		h.Write([]byte(text))
		h.Write([]byte{0})
	}
	// FNV leaves the high bits of short inputs alike; this spreads them.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Chance returns Hash as a number from 0 to 1, without 1.
func Chance(texts ...string) float64 {
	return float64(Hash(texts...)>>11) / (1 << 53)
}

// Distribution is how durations vary.
type Distribution string

// The distributions.
const (
	// Uniform: all values within the jitter are as likely.
	Uniform Distribution = ""
	// Exponential: the mean is the duration; a twentieth takes three times as long or longer. It is cut
	// at ten times.
	Exponential Distribution = "exponential"
	// LongTail: one in twenty takes ten times as long; the others vary as with Uniform.
	LongTail Distribution = "longTail"
)

// Valid reports whether there is such a distribution.
func (d Distribution) Valid() bool { return d == Uniform || d == Exponential || d == LongTail }

const (
	most     = 10.0
	tailRate = 0.05
)

// Spread returns a duration for a number from 0 to 1, without 1. Jitter is the fraction by which
// Uniform shortens or lengthens it at most.
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
