// Package lot draws by lot what a run of a test plays, where playing all would take too long.
//
// Every run draws anew, logs its seed, and draws the same again when MILLWRIGHT_SEED is that seed. With
// MILLWRIGHT_ALL=1 all is played.
//
// "make test" sets the seed by the files of the repository: the same files draw the same, and any change of code draws
// anew. The go command knows which variables a test reads, and keeps its results while these and the code stay as they
// are.
package lot

import (
	"flag"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Lot draws. The zero value draws with seed 0.
type Lot struct {
	// Seed decides what is drawn.
	Seed uint64
	// All has everything be drawn.
	All bool
}

// All reports whether everything is to be played.
func All() bool { return os.Getenv("MILLWRIGHT_ALL") == "1" }

// New returns what the environment asks for, and logs how to draw the same again.
func New(t *testing.T) Lot {
	t.Helper()
	l := Lot{Seed: uint64(time.Now().UnixNano()), All: All()}
	if seed, given := seed(t); given {
		l.Seed = seed
	}
	t.Logf("a part of all; the same again with MILLWRIGHT_SEED=%d, all with MILLWRIGHT_ALL=1", l.Seed)
	return l
}

// seed returns the seed of the environment, if there is one.
func seed(t *testing.T) (seed uint64, given bool) {
	t.Helper()
	text := os.Getenv("MILLWRIGHT_SEED")
	if text == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("MILLWRIGHT_SEED: %v", err)
	}
	return seed, true
}

// Random returns a source of random numbers with the seed that New logs.
func Random(t *testing.T) *rand.Rand {
	t.Helper()
	return New(t).random(0)
}

// Check is rapid.Check with the seed of the environment, if there is one and the flag -rapid.seed says none. When the property does
// not hold, rapid says how to try the same again.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	if seed, given := seed(t); given {
		seedOfRapid.Do(func() {
			if f := flag.Lookup("rapid.seed"); f.Value.String() == f.DefValue {
				if err := f.Value.Set(strconv.FormatUint(seed, 10)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	rapid.Check(t, property)
}

// seedOfRapid is set before the first check, since others may run beside it.
var seedOfRapid sync.Once

// Of returns n of the numbers from 0 to count-1 in their order: by lot, but one of each stretch of equal
// length. It returns all of them for n = 0.
func (l Lot) Of(count, n int) []int {
	if l.All || n == 0 {
		n = count
	}
	random := l.random(count)
	var drawn []int
	for i := range n {
		from, to := i*count/n, (i+1)*count/n
		drawn = append(drawn, from+random.IntN(to-from))
	}
	return drawn
}

// Cells returns the columns of a table that are played of each of its rows: one by lot, and every column as
// often as the others, or once more.
func (l Lot) Cells(rows, columns int) [][]int {
	random := l.random(rows)
	turns, cells := random.Perm(rows), make([][]int, rows)
	first := random.IntN(columns)
	for row, turn := range turns {
		for column := range columns {
			if l.All || column == (first+turn)%columns {
				cells[row] = append(cells[row], column)
			}
		}
	}
	return cells
}

// Shuffled returns the numbers from 0 to count-1 in an order by lot.
func (l Lot) Shuffled(count int) []int { return l.random(count).Perm(count) }

// One returns one of the numbers from 0 to count-1, by lot. Each name has a lot of its own.
func (l Lot) One(name string, count int) int {
	stream := fnv.New32a()
	stream.Write([]byte(name))
	return l.random(int(stream.Sum32())).IntN(count)
}

func (l Lot) random(stream int) *rand.Rand { return rand.New(rand.NewPCG(l.Seed, uint64(stream))) }
