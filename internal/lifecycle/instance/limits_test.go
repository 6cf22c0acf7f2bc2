package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
)

func TestShown(t *testing.T) {
	numbered := func(count int) []string {
		var texts []string
		for i := range count {
			texts = append(texts, fmt.Sprint("field ", i))
		}
		return texts
	}
	long := strings.Repeat("x", longestDifference)
	for name, tc := range map[string]struct{ given, want []string }{
		"as many as can be stored": {numbered(mostDifferences), numbered(mostDifferences)},
		"one more":                 {numbered(mostDifferences + 1), append(numbered(mostDifferences-1), "2 more")},
		"as long as can be stored": {[]string{long}, []string{long}},
		"too long":                 {[]string{long + "x"}, shown([]string{""})},
		"blank":                    {[]string{" "}, shown([]string{"\xff"})},
		"twice":                    {[]string{"tags", "tags"}, []string{"tags"}},
	} {
		if got := shown(tc.given); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %.300q, want %.300q", name, got, tc.want)
		}
	}
	if got := shown([]string{""}); len(got) != 1 || strings.TrimSpace(got[0]) == "" {
		t.Errorf("an empty difference is shown as %q", got)
	}
}

// TestSpread_Windows checks when failing Machines are no longer held back.
func TestSpread_Windows(t *testing.T) {
	begun := time.Unix(1_000_000, 0)
	machine := &v1alpha1.Machine{}
	machine.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
	var c spread
	held := func(now time.Time) int {
		count := 0
		for range 100 {
			if c.delay(now, nil, &entry{}, machine) > 0 {
				count++
			}
		}
		return count
	}
	for _, tc := range []struct {
		after time.Duration
		want  int // may be one less, as a delay is random
	}{{0, 90}, {spreadWindow - 1, 100}, {spreadWindow, 90}, {spreadTakeover - 1, 100}, {spreadTakeover, 0}} {
		if got := held(begun.Add(tc.after)); got > tc.want || got < tc.want-1 {
			t.Errorf("%v after the takeover, %d are held back, want %d", tc.after, got, tc.want)
		}
	}
}

// TestRetriedForSecret checks that a call is held back only if nothing but the Secret has changed.
func TestRetriedForSecret(t *testing.T) {
	before := &entry{result: Failed{}, fingerprint: fingerprint{class: "class", secret: [32]byte{1}}}
	for name, tc := range map[string]struct {
		next *entry
		want bool
	}{
		"Secret":           {&entry{fingerprint: fingerprint{class: "class", secret: [32]byte{2}}}, true},
		"Secret and class": {&entry{fingerprint: fingerprint{class: "other", secret: [32]byte{2}}}, false},
		"Secret and goal":  {&entry{goal: goalGone, fingerprint: fingerprint{class: "class", secret: [32]byte{2}}}, false},
	} {
		if got := retriedForSecret(before, tc.next); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

// TestVolumes_UnreadableClass checks that a volume does not count as unknown to the driver.
func TestVolumes_UnreadableClass(t *testing.T) {
	unreadable := errors.New("unreadable")
	i := identifying(t, nil)
	i.volumes.options.Class = func(context.Context, Key) (*v1alpha1.MachineClass, error) { return nil, unreadable }
	if _, pending, err := i.volumes.Identify(t.Context(), Key{}, volumeNumber(1)); !errors.Is(err, unreadable) {
		t.Errorf("pending %t, %v", pending, err)
	}
}

// TestVolumes_TaskIsNotAccepted checks that a call that could not begin is made later.
func TestVolumes_TaskIsNotAccepted(t *testing.T) {
	i := identifying(t, map[string]driver.Driver{"x": newIdentifier("x-", nil)})
	run := i.volumes.options.Run
	i.volumes.options.Run = func(func(context.Context)) bool { return false }
	if got := i.look("x", volumeNumber(1)); got != "pending" {
		t.Errorf("%q", got)
	}
	i.volumes.options.Run = run
	if got := i.learn("x", volumeNumber(1)); got != "x-volume-1" {
		t.Errorf("%q", got)
	}
}

// TestVolumes_Clock checks that the back-off of an unavailable driver uses the given clock, and grows.
func TestVolumes_Clock(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	drivers := registry.New(registry.Options{})
	var tasks []func(context.Context)
	woken := 0
	volumes := NewVolumes(VolumesOptions{
		Drivers: drivers, Clock: clock, Wake: func(types.NamespacedName) { woken++ },
		Run: func(task func(context.Context)) bool { tasks = append(tasks, task); return true },
		Class: func(context.Context, Key) (*v1alpha1.MachineClass, error) {
			return &v1alpha1.MachineClass{Provider: "x"}, nil
		},
	})
	if _, err := drivers.Register("x", newIdentifier("x-", status.Error(codes.Unavailable, "not now"))); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		if _, pending, err := volumes.Identify(t.Context(), Key{}, volumeNumber(1)); !pending || err != nil {
			t.Fatalf("pending %t, %v", pending, err)
		}
		for _, task := range tasks {
			task(t.Context())
		}
		tasks = nil
		before := woken
		clock.Step(wait - 1)
		if woken != before {
			t.Errorf("woken before %v", wait)
		}
		clock.Step(1)
		if woken != before+1 {
			t.Errorf("woken %d times after %v", woken-before, wait)
		}
	}
}
