package rollout

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// View returns a status as lines for a terminal, which has been shown for a time.
func View(s Status, now time.Time, since time.Duration) []string {
	lines := []string{
		fmt.Sprintf("machine deployment %s, %s, %s", s.Key, title(s), duration.HumanDuration(since)),
		numbers(s) + deadline(s, now),
	}
	if len(s.Sets) > 0 {
		lines = append(append(lines, ""), table(s)...)
	}
	var can []string
	for i, wait := range s.Waits {
		if i == 0 {
			lines = append(lines, "", "Waiting:")
		}
		ago := ""
		if !wait.Since.IsZero() {
			ago = fmt.Sprintf(" (for %s)", duration.HumanDuration(max(0, now.Sub(wait.Since))))
		}
		lines = append(lines, "  - "+wait.Text+ago)
		if line := "  - " + wait.Remedy; wait.Remedy != "" && !slices.Contains(can, line) {
			can = append(can, line)
		}
	}
	if len(can) > 0 {
		lines = append(append(lines, "", "You can:"), can...)
	}
	for i := range lines {
		lines[i] = report.Printable(lines[i])
	}
	return lines
}

func title(s Status) string {
	switch {
	case s.Outcome == Complete:
		return fmt.Sprintf("revision %d, rolled out", s.Revision)
	case s.Revision == 0:
		return "no machine set for its template yet"
	default:
		return fmt.Sprintf("rolling out revision %d", s.Revision)
	}
}

func numbers(s Status) string {
	text := fmt.Sprintf("%d of %d updated, %d available", s.Updated, s.Wanted, s.Available)
	if s.Updated > s.Wanted {
		text = fmt.Sprintf("%d wanted, %d updated, %d available", s.Wanted, s.Updated, s.Available)
	}
	if s.Old > 0 {
		text += fmt.Sprintf(", %d old", s.Old)
	}
	if s.Preserved > 0 {
		text += fmt.Sprintf(", %d preserved", s.Preserved)
	}
	return text
}

func deadline(s Status, now time.Time) string {
	switch left := s.Deadline.Sub(now); {
	case s.Outcome == Late:
		return fmt.Sprintf("; no progress for more than %s, which is its deadline", duration.HumanDuration(s.Limit))
	case s.Deadline.IsZero() || s.Outcome == Complete:
		return ""
	case left > 0:
		return fmt.Sprintf("; has to progress within %s", duration.HumanDuration(left))
	}
	return "; its progress deadline is over"
}

func table(s Status) []string {
	var text strings.Builder
	columns := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(columns, "\tSET\tREVISION\tWANTED\tEXIST\tAVAILABLE\tMACHINES")
	for _, set := range s.Sets {
		fmt.Fprintf(columns, "%s\t%s\t%d\t%d\t%d\t%d\t%s\n", age(set), set.Name, set.Revision, set.Wanted, set.Exist, set.Available, set.Phases)
	}
	_ = columns.Flush() // to memory
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
}

func age(set SetStatus) string {
	if set.Current {
		return "new"
	}
	return "old"
}

// Line returns a status in one line. It changes only when something does.
func Line(s Status) string {
	parts := []string{numbers(s)}
	for _, set := range s.Sets {
		parts = append(parts, fmt.Sprintf("%s set %s (revision %d): %s", age(set), set.Name, set.Revision, set.Phases))
	}
	more := ""
	if n := len(s.Waits) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return report.Printable(strings.Join(parts, "; ") + waiting(s, more))
}

// Brief returns in a clause how far a rollout is, and what it waits for first.
func Brief(s Status) string { return report.Printable(numbers(s) + waiting(s, "")) }

// waiting says what a rollout waits for first, and what helps. Long texts are cut in the middle: at
// their end providers say what went wrong.
func waiting(s Status, more string) string {
	const most = 240
	if len(s.Waits) == 0 {
		return ""
	}
	text := "; waiting: " + messages.Shorten(s.Waits[0].Text, most) + more
	if remedy := s.Waits[0].Remedy; remedy != "" {
		text += "; you can: " + messages.Shorten(remedy, most)
	}
	return text
}
