package handover

import "testing"

// This test covers every transition of a source.
func TestSource_Steps(t *testing.T) {
	events := []SourceEvent{
		Ordered, Cancelled, TargetFound, NoTarget, Agreed, Failed, GuestStopped, Copied, TimeOver,
		Granted, Leased, Denied, Unknown, Terminated,
	}
	type key struct {
		from SourceState
		on   SourceEvent
	}
	want := map[key]sourceStep{
		{Running, Ordered}: {Asking, Ask}, {Running, Terminated}: {Left, Kill},
		{Asking, TargetFound}: {Negotiating, Negotiate}, {Asking, NoTarget}: {Running, ShutDown},
		{Asking, Failed}: {Asking, Ask}, {Asking, Cancelled}: {Running, Nothing}, {Asking, Terminated}: {Left, Kill},
		{Negotiating, Agreed}: {Copying, Copy}, {Negotiating, Failed}: {Asking, Ask},
		{Negotiating, Cancelled}: {Running, Abandon}, {Negotiating, Terminated}: {Left, Kill},
		{Copying, GuestStopped}: {Stopped, Nothing}, {Copying, Failed}: {Asking, AbandonAndAsk},
		{Copying, Cancelled}: {Running, Abandon}, {Copying, Terminated}: {Left, Kill},
		{Stopped, Copied}: {Awaiting, Commit}, {Stopped, Failed}: {Asking, AbandonAndAsk},
		{Stopped, Cancelled}: {Running, Abandon}, {Stopped, Terminated}: {Left, Kill},
		{Awaiting, TimeOver}: {Reclaiming, Reclaim}, {Awaiting, Terminated}: {Left, Kill},
		{Reclaiming, Granted}: {Regained, OpenLease}, {Reclaiming, Denied}: {Left, Kill}, {Reclaiming, Unknown}: {Reclaiming, Reclaim},
		{Regained, Leased}: {Running, Resume}, {Regained, Terminated}: {Left, Kill},
	}
	for _, state := range []SourceState{Running, Asking, Negotiating, Copying, Stopped, Awaiting, Reclaiming, Regained, Left} {
		for _, event := range events {
			expected, known := want[key{state, event}]
			if !known {
				expected = sourceStep{state, Nothing}
			}
			s := Source{state}
			if do := s.Take(event); do != expected.do || s.State() != expected.to {
				t.Errorf("state %s, event %s: got %s and %q, want %s and %q", state, event, s.State(), do, expected.to, expected.do)
			}
			runs := map[SourceState]bool{Running: true, Asking: true, Negotiating: true, Copying: true}
			if s.MayRun() != runs[s.State()] {
				t.Errorf("%s: MayRun() = %t", s.State(), s.MayRun())
			}
		}
	}
	var zero Source
	if zero.State() != Running || !zero.MayRun() {
		t.Errorf("state of the zero Source = %s", zero.State())
	}
}

// This test covers every transition of a target.
func TestTarget_Steps(t *testing.T) {
	type key struct {
		from TargetState
		on   TargetEvent
	}
	want := map[key]targetStep{
		{Waiting, Called}: {Incoming, Listen}, {Waiting, WaitedTooLong}: {Gone, Exit}, {Waiting, Ended}: {Gone, Exit},
		{Incoming, Received}: {Switching, SwitchOver}, {Incoming, Broken}: {Gone, Exit},
		{Incoming, WaitedTooLong}: {Gone, Exit}, {Incoming, Ended}: {Gone, Exit},
		{Switching, SwitchedOver}: {Authorized, AwaitLease}, {Switching, Refused}: {Gone, Exit},
		{Switching, Unanswered}: {Switching, SwitchOver}, {Switching, WaitedTooLong}: {Gone, Exit}, {Switching, Ended}: {Gone, Exit},
		{Authorized, GotLease}: {Arrived, Run}, {Authorized, Ended}: {Gone, Exit},
		{Arrived, Ended}: {Gone, Exit},
	}
	for _, state := range []TargetState{Waiting, Incoming, Switching, Authorized, Arrived, Gone} {
		for _, event := range []TargetEvent{Called, Received, Broken, WaitedTooLong, SwitchedOver, GotLease, Refused, Unanswered, Ended} {
			expected, known := want[key{state, event}]
			if !known {
				expected = targetStep{state, Stay}
			}
			target := Target{state}
			if do := target.Take(event); do != expected.do || target.State() != expected.to {
				t.Errorf("state %s, event %s: got %s and %q, want %s and %q", state, event, target.State(), do, expected.to, expected.do)
			}
			if target.MayRun() != (target.State() == Arrived) {
				t.Errorf("%s: MayRun() = %t", target.State(), target.MayRun())
			}
		}
	}
	var zero Target
	if zero.State() != Waiting {
		t.Errorf("state of the zero Target = %s", zero.State())
	}
}
