package rollout

import (
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// waitingFor records for how long candidates have been waiting for the machine controller.
func waitingFor(waiting time.Duration) func(*Facts) {
	return func(f *Facts) { f.Nodes.AwaitingSince = fixture.Noon.Add(-waiting) }
}

// TestInPlaceUpdate_BlockedMessage checks the message about an update that needs intervention: because nodes failed to
// update, nodes must be selected, or no machine controller responds.
func TestInPlaceUpdate_BlockedMessage(t *testing.T) {
	t.Parallel()
	inPlace, rolling := oneUnavailable(4), fixture.Deployment(4)
	byHand := fixture.Deployment(4, fixture.InPlaceByHand("0", "1"))
	const (
		failed = ": the update of its node failed: of agent"
		silent = "no machine controller has responded to the in-place update of "
		check  = "; check that one is running and that its version supports in-place updates"
		choose = "machine m1: its node is not selected. Label the nodes to update with " + selected + "=true."

		three       = "3 m1 candidate; m2 candidate; m3 candidate"
		four        = "4 m1 candidate; m2 candidate; m3 candidate; m4 candidate"
		threeFailed = "machine m1" + failed + "; machine m2" + failed + "; machine m3" + failed
	)
	late := waitingFor(time.Minute)
	for reason, test := range map[string]struct {
		deployment *v1alpha1.MachineDeployment
		old        string
		differs    func(*Facts)
		want       string
	}{
		"not updated yet":          {inPlace, "1 m1 updating", nil, ""},
		"failed":                   {inPlace, "1 m1 failed", nil, "machine m1" + failed + "."},
		"failed, nodes unknown":    {inPlace, "1 m1 failed", nodesUnknown, "machine m1" + failed + "."},
		"failed and being deleted": {inPlace, "1 m1 failed leaving", nil, ""},
		"failed, but paused":       {paused(oneUnavailable(4)), "1 m1 failed", nil, ""},
		"three failed":             {inPlace, "3 m1 failed; m2 failed; m3 failed", nil, threeFailed + "."},
		"four failed": {
			inPlace, "4 m1 failed; m2 failed; m3 failed; m4 failed", nil, threeFailed + "; and 1 more.",
		},

		"by hand":                      {byHand, "1 m1 candidate", nil, choose},
		"by hand, the node is unknown": {byHand, "2 m1 candidate; m2 nodeless", nil, choose},

		"candidate since this pass": {inPlace, "1 m1 candidate", nil, ""},
		"candidate for 59 seconds":  {inPlace, "1 m1 candidate", waitingFor(59 * time.Second), ""},
		"no response for a minute":  {inPlace, "1 m1 candidate", late, silent + "m1" + check + "."},
		"no response, another failed": {
			inPlace, "2 m1 failed; m2 candidate", late, silent + "m2" + check + "; machine m1" + failed + ".",
		},
		"no response to three": {inPlace, three, late, silent + "m1, m2, m3" + check + "."},
		"no response to four": {
			inPlace, four, late, silent + "m1, m2, m3 and 1 more" + check + ".",
		},
		"candidate of another strategy": {rolling, "1 m1 candidate", late, ""},
	} {
		t.Run(reason, func(t *testing.T) {
			if got := (situation{test.deployment, test.old, "0", test.differs}).rollout().Blocked(); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestInPlaceUpdate_ResponseDeadline checks when the next pass has to report that no machine controller responds.
func TestInPlaceUpdate_ResponseDeadline(t *testing.T) {
	t.Parallel()
	for reason, test := range map[string]struct {
		differs func(*Facts)
		want    time.Duration
	}{
		"no candidate waits":    {nil, 0},
		"the nodes are unknown": {nodesUnknown, 0},
		"it is not late":        {waitingFor(20 * time.Second), 40 * time.Second},
		"it is late":            {waitingFor(2 * time.Minute), 0},
	} {
		r := situation{oneUnavailable(1), "1 m1 candidate", "0", test.differs}.rollout()
		if got := r.ResponseDeadlineIn(); got != test.want {
			t.Errorf("%s: %s, want %s", reason, got, test.want)
		}
	}
}
