package connlimit

import (
	"slices"
	"testing"
	"testing/synctest"
)

// TestTurns_OriginsTakeTurns checks the order in which waiting connections get turns: those that have had one first,
// and one of each origin before the second of any.
func TestTurns_OriginsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1)
		end, _ := turns.take(of(9), false, nil)
		var order []string
		wait := func(name string, from byte, again bool) {
			go func() {
				end, _ := turns.take(of(from), again, nil)
				order = append(order, name)
				end()
			}()
			synctest.Wait()
		}
		wait("a1", 1, false)
		wait("a2", 1, false)
		wait("a3", 1, false)
		wait("b1", 2, false)
		wait("b2", 2, true)
		wait("c1", 3, false)
		end()
		synctest.Wait()
		if want := []string{"b2", "a1", "b1", "c1", "a2", "a3"}; !slices.Equal(order, want) {
			t.Errorf("the order is %q, want %q", order, want)
		}
	})
}

// TestTurns_ClosedConnectionsLeave checks that a connection that is closed while it waits uses no turn.
func TestTurns_ClosedConnectionsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(2)
		first, _ := turns.take(of(1), false, nil)
		second, _ := turns.take(of(1), false, nil)
		closed := make(chan struct{})
		left := make(chan bool, 2)
		for range 2 {
			go func() {
				_, ok := turns.take(of(1), false, closed)
				left <- ok
			}()
		}
		synctest.Wait()
		close(closed)
		if one, other := <-left, <-left; one || other {
			t.Error("a closed connection got a turn")
		}
		first()
		second()
		if turns.free != 2 || len(turns.queues[1].order)+len(turns.queues[1].waiting) != 0 {
			t.Errorf("%d turns are free, %v wait", turns.free, turns.queues[1])
		}
	})
}
