package crash

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/test/support/tier"
)

// betweenLines is the minimum time between two progress lines.
const betweenLines = 5 * time.Second

// progress counts crashes, and reports the progress.
type progress struct {
	// print prints a line. It does nothing unless all crash points are tried.
	print func(string)
	// scenarios is the number of scenarios.
	scenarios int
	began     time.Time

	mu sync.Mutex
	// recorded is the number of scenarios whose crash points are known.
	recorded, through int
	planned, done     int
	hit               int
	// left is the number of crash points that are skipped, because they are equivalent to others.
	left     int
	messages time.Time
}

// newProgress expects that many scenarios.
func newProgress(scenarios int) *progress {
	p := &progress{print: func(string) {}, scenarios: scenarios, began: time.Now()}
	if tier.Exhaustive() {
		p.print = func(line string) { fmt.Fprintln(os.Stderr, line) }
	}
	return p
}

// crashPoints counts the crash points of one scenario. The lock of progress guards it.
type crashPoints struct {
	of                 *progress
	name               string
	planned, done, hit int
}

// scenario records how many crash points of a scenario are planned, and how many are skipped because they are
// equivalent to others.
func (p *progress) scenario(name string, planned, left int) *crashPoints {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recorded++
	p.planned += planned
	p.left += left
	return &crashPoints{of: p, name: name, planned: planned}
}

// count records that a crash was tried, and whether it happened at its point.
func (d *crashPoints) count(hit bool) {
	p := d.of
	p.mu.Lock()
	defer p.mu.Unlock()
	d.done++
	p.done++
	if hit {
		d.hit++
		p.hit++
	}
	last := d.done == d.planned
	if last {
		p.through++
	}
	if last || time.Since(p.messages) >= betweenLines {
		p.messages = time.Now()
		p.print(fmt.Sprintf("%s: %d of %d crashes. %s", d.name, d.done, d.planned, p))
	}
}

// end prints a summary.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.print(p.String())
}

// String is called with the lock held.
func (p *progress) String() string {
	atLeast := ""
	if p.recorded < p.scenarios {
		atLeast = "at least " // others are yet to be recorded
	}
	return fmt.Sprintf("All: %d of %s%d crashes (and %d are equivalent to one of these), %d of %d scenarios, after %v",
		p.done, atLeast, p.planned, p.left, p.through, p.scenarios, time.Since(p.began).Round(time.Second))
}

// TestProgress checks the progress lines.
func TestProgress(t *testing.T) {
	var lines []string
	p := newProgress(2)
	p.print = func(line string) { lines = append(lines, line) }
	first := p.scenario("first", 3, 5)
	first.count(true)
	first.count(true) // too soon for another line
	second := p.scenario("second", 1, 2)
	second.count(false)
	first.count(true)
	p.end()
	want := []string{
		"first: 1 of 3 crashes. All: 1 of at least 3 crashes (and 5 are equivalent to one of these), 0 of 2 scenarios, after 0s",
		"second: 1 of 1 crashes. All: 3 of 4 crashes (and 7 are equivalent to one of these), 1 of 2 scenarios, after 0s",
		"first: 3 of 3 crashes. All: 4 of 4 crashes (and 7 are equivalent to one of these), 2 of 2 scenarios, after 0s",
		"All: 4 of 4 crashes (and 7 are equivalent to one of these), 2 of 2 scenarios, after 0s",
	}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("progress lines:\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if p.hit != 3 || first.hit != 3 {
		t.Errorf("%d crash points reached, %d of the first scenario; want 3 of both", p.hit, first.hit)
	}
}
