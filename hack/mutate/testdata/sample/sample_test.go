package sample

import "testing"

func TestClamp(t *testing.T) {
	for n, want := range map[int]int{9: 9, 11: 10, -1: 0} {
		if got := Clamp(n); got != want {
			t.Errorf("Clamp(%d) = %d, want %d", n, got, want)
		}
	}
}
