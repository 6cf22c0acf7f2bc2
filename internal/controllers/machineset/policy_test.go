package machineset

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestReplacementPolicy_InvalidIsReportedOnce checks that an invalid replacement policy of a set is reported once and otherwise ignored.
func TestReplacementPolicy_InvalidIsReportedOnce(t *testing.T) {
	s := newServer(newSet(1))
	c := s.newController()
	annotate := func(text string) {
		set := s.set()
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyReplacement: text}
		must(s.live.Update(t.Context(), set))
	}
	takeEvents := func() (lines []string) {
		for range 3 {
			if _, err := c.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			s.catchUp()
		}
		for _, line := range s.events.lines {
			if strings.HasPrefix(line, reasonInvalidReplacement) {
				lines = append(lines, line)
			}
		}
		s.events.lines = nil
		return lines
	}
	for _, tc := range []struct {
		text string
		want int
	}{
		{`{"budgets":[{"max":-5}]}`, 1}, {`{"budgets":[{"max":1}]}`, 0}, {`{"budgets":[{"max":-5}]}`, 1}, {`{"budgets":[{"max":"1000%"}]}`, 1}, {strings.Repeat("\x1b", 200_000), 1}, {``, 0},
	} {
		annotate(tc.text)
		lines := takeEvents()
		if len(lines) != tc.want {
			t.Errorf("%.50q: events %.300q, want %d", tc.text, lines, tc.want)
		}
		for _, line := range lines {
			if len(line) > 2*maxEventMessage || strings.Contains(line, "\x1b") {
				t.Errorf("%.50q: event %.300q has %d bytes", tc.text, line, len(line))
			}
		}
	}
	if got := len(s.all()); got != 1 {
		t.Errorf("%d machines", got)
	}
}
