package outage

import (
	"testing"
	"time"

	clocks "k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
)

// TestSetting_DetectsClockChanges checks which changes of the wall clock count, and that each counts once.
func TestSetting_DetectsClockChanges(t *testing.T) {
	const tolerance = 30 * time.Second
	// step contains how much time passes, and by how much the wall clock is changed meanwhile.
	type step struct{ passed, set time.Duration }
	cases := map[string]struct {
		steps []step
		want  []bool
	}{
		"time passes":          {[]step{{time.Hour, 0}, {48 * time.Hour, 0}}, []bool{false, false}},
		"forward, once":        {[]step{{time.Second, 2 * time.Hour}, {time.Hour, 0}}, []bool{true, false}},
		"back, once":           {[]step{{time.Second, -2 * time.Hour}, {time.Hour, 0}}, []bool{true, false}},
		"forward and back":     {[]step{{0, 2 * time.Hour}, {0, -2 * time.Hour}}, []bool{true, true}},
		"suspended":            {[]step{{0, 5 * time.Hour}}, []bool{true}},
		"within the tolerance": {[]step{{0, tolerance - 1}, {0, 1 - tolerance}}, []bool{false, false}},
		"in small steps":       {[]step{{0, tolerance / 2}, {0, tolerance / 2}, {0, tolerance / 2}}, []bool{false, true, false}},
		"by a century":         {[]step{{0, 876_000 * time.Hour}, {time.Hour, 0}}, []bool{true, false}},
	}
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			wall, steady := testingclock.NewFakePassiveClock(begin), testingclock.NewFakePassiveClock(begin)
			s := newSetting(wall, steady)
			for i, step := range tc.steps {
				wall.SetTime(wall.Now().Add(step.passed).Add(step.set))
				steady.SetTime(steady.Now().Add(step.passed))
				s.look(t.Context(), wall.Now(), tolerance)
				if noticed := s.set.Equal(wall.Now()); noticed != tc.want[i] {
					t.Errorf("check %d: noticed %v, want %v", i, noticed, tc.want[i])
				}
				s.set = time.Time{}
			}
		})
	}
}

// TestSetting_RealClock checks that times of the real clock contain both readings.
func TestSetting_RealClock(t *testing.T) {
	s := newSetting(clocks.RealClock{}, nil)
	s.look(t.Context(), time.Now(), time.Minute)
	if !s.set.IsZero() {
		t.Fatal("a change is reported although only time passed")
	}
	s.began.wall = s.began.wall.Add(-2 * time.Hour) // as if the clock had been two hours behind
	s.look(t.Context(), time.Now(), time.Minute)
	if s.set.IsZero() {
		t.Error("the change is not reported")
	}
}
