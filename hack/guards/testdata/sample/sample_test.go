package sample

import (
	"os"
	"testing"
)

func TestClamp(t *testing.T) {
	for n, want := range map[int]int{-1: 0, 3: 3, 11: 10} {
		if got := Clamp(n); got != want {
			t.Errorf("Clamp(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestSkipped(t *testing.T) {
	t.Skip("shows nothing")
}

func TestFails(t *testing.T) {
	if os.Getenv("GUARD_OFF") == "" {
		t.Error("fails with all guards on")
	}
}
