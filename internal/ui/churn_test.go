package ui

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/browser"
)

// churn replaces and changes machines of a pool in the rows of a page.
type churn struct {
	hub   *hub
	like  *v1alpha1.Machine
	names []string
	made  int
}

// churnPhases are those between which machines change.
var churnPhases = []v1alpha1.MachinePhase{v1alpha1.MachinePending, v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineFailed, v1alpha1.MachineTerminating}

func (c *churn) put(name string, phase v1alpha1.MachinePhase) {
	machine := c.like.DeepCopy()
	machine.Name, machine.Status.CurrentStatus.Phase = name, phase
	row := machineRow(machine)
	c.hub.set(row.ID, row)
}

func (c *churn) create() string {
	c.made++
	name := fmt.Sprintf("pool-1-%07d", c.made)
	c.put(name, v1alpha1.MachinePending)
	return name
}

// step replaces 50 machines, and changes 100 others.
func (c *churn) step() {
	for i := range 50 {
		at := (c.made + i*97) % len(c.names)
		c.hub.set(idOf("machine", "n/"+c.names[at]), nil)
		c.names[at] = c.create()
	}
	for i := range 100 {
		c.put(c.names[(c.made+i*41)%len(c.names)], churnPhases[(c.made/50+i)%len(churnPhases)])
	}
}

// TestPage_MemoryOfTabStaysFlat keeps a tab with 5,000 machines open while five times per second 50 of them are replaced
// and 100 change, for the time in MILLWRIGHT_CHURN. It logs the tab's memory after a garbage collection each minute. "make
// bench-ui" runs it.
func TestPage_MemoryOfTabStaysFlat(t *testing.T) {
	if os.Getenv("MILLWRIGHT_CHURN") == "" {
		t.Skip("MILLWRIGHT_CHURN is not set; run make bench-ui")
	}
	period, err := time.ParseDuration(os.Getenv("MILLWRIGHT_CHURN"))
	if err != nil {
		t.Fatal(err)
	}
	p := browser.Open(t)
	s := serve(t, newFakeClient(t, onePool()[:2]...))
	p.Navigate(s.URL())
	c := &churn{hub: s.model.hub, like: onePool()[2].(*v1alpha1.Machine)}
	for range 5000 {
		c.names = append(c.names, c.create())
	}
	p.Await(`document.querySelectorAll(".tile").length === 5000`)
	t.Logf("before: %s", p.Memory())
	steps := time.NewTicker(200 * time.Millisecond)
	defer steps.Stop()
	begin := time.Now()
	var first, last browser.Memory
	for minute := 1; time.Since(begin) < period; minute++ {
		for time.Since(begin) < min(time.Duration(minute)*time.Minute, period) {
			<-steps.C
			c.step()
		}
		// The latest machine is shown, so the tab keeps up.
		p.Await(fmt.Sprintf(`document.querySelectorAll(".tile").length === 5000 && document.querySelector('[data-id="machine/n/pool-1-%07d"]')`, c.made))
		last = p.Memory()
		if minute == 1 { // with the buffers that a tab gets in the beginning
			first = last
		}
		t.Logf("minute %d: %s, %d machines were created", minute, last, c.made)
	}
	// The heap varies with what the tab is processing.
	if last.Heap > 2*first.Heap || last.Nodes > first.Nodes*5/4 || last.Listeners > first.Listeners*5/4 {
		t.Errorf("the memory of the tab grows: %s after a minute, and %s in the end", first, last)
	}
	withoutProblems(t, p)
}
