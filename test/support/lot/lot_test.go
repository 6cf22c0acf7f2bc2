package lot_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millwright-dev/millwright/test/support/lot"
)

// TestCells: each row plays a column, each column is played, the same seed plays the same, and with many
// seeds all cells are played.
func TestCells(t *testing.T) {
	const rows, columns = 5, 2
	seen := map[[2]int]bool{}
	for seed := range uint64(100) {
		cells, times := lot.Lot{Seed: seed}.Cells(rows, columns), map[int]int{}
		if diff := cmp.Diff(cells, lot.Lot{Seed: seed}.Cells(rows, columns)); diff != "" {
			t.Errorf("with seed %d, then again:\n%s", seed, diff)
		}
		for row, drawn := range cells {
			if len(drawn) != 1 {
				t.Fatalf("with seed %d, row %d plays %v", seed, row, drawn)
			}
			times[drawn[0]]++
			seen[[2]int{row, drawn[0]}] = true
		}
		if len(cells) != rows || times[0]+times[1] != rows || max(times[0], times[1]) != 3 {
			t.Errorf("with seed %d, the cells are %v", seed, cells)
		}
	}
	if len(seen) != rows*columns {
		t.Errorf("%d cells are ever played", len(seen))
	}
	for row, drawn := range (lot.Lot{All: true}).Cells(rows, columns) {
		if !slices.Equal(drawn, []int{0, 1}) {
			t.Errorf("of all, row %d plays %v", row, drawn)
		}
	}
}

// TestShuffled: all numbers come, each of them may be the first, and the same seed draws the same order.
func TestShuffled(t *testing.T) {
	const count = 5
	first := map[int]bool{}
	for seed := range uint64(100) {
		drawn := lot.Lot{Seed: seed}.Shuffled(count)
		if !slices.Equal(drawn, lot.Lot{Seed: seed}.Shuffled(count)) || !slices.Equal(slices.Sorted(slices.Values(drawn)), []int{0, 1, 2, 3, 4}) {
			t.Fatalf("with seed %d, the order is %v, or another one", seed, drawn)
		}
		first[drawn[0]] = true
	}
	if len(first) != count {
		t.Errorf("%d numbers are ever the first", len(first))
	}
}

// TestOne: every number is drawn, each name draws for itself, and the same seed draws the same.
func TestOne(t *testing.T) {
	const count = 5
	drawn, apart := map[int]bool{}, false
	for seed := range uint64(100) {
		l := lot.Lot{Seed: seed}
		one := l.One("one", count)
		if one < 0 || one >= count || l.One("one", count) != one {
			t.Errorf("with seed %d, %d is drawn, and then %d", seed, one, l.One("one", count))
		}
		drawn[one] = true
		apart = apart || l.One("other", count) != one
	}
	if len(drawn) != count || !apart {
		t.Errorf("%d numbers are drawn; two names draw for themselves: %t", len(drawn), apart)
	}
}

// TestEnvironment: the seed and the wish for all come from the environment; else each run draws anew.
func TestEnvironment(t *testing.T) {
	t.Setenv("MILLWRIGHT_ALL", "")
	t.Setenv("MILLWRIGHT_SEED", "")
	if a, b := lot.New(t), lot.New(t); a.All || a.Seed == b.Seed {
		t.Errorf("%+v and %+v", a, b)
	}
	t.Setenv("MILLWRIGHT_ALL", "1")
	t.Setenv("MILLWRIGHT_SEED", "7")
	if got := lot.New(t); got != (lot.Lot{Seed: 7, All: true}) {
		t.Errorf("%+v", got)
	}
}

// TestCheck: the same seed draws the same.
func TestCheck(t *testing.T) {
	t.Setenv("MILLWRIGHT_SEED", "7")
	draw := func() (drawn []int) {
		lot.Check(t, func(rt *rapid.T) { drawn = append(drawn, rapid.Int().Draw(rt, "number")) })
		return drawn
	}
	if a, b := draw(), draw(); len(a) < 2 || !slices.Equal(a, b) {
		t.Errorf("%d and %d numbers, not the same", len(a), len(b))
	}
}
