package rollout

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// View is a status as lines for a terminal. Since is how long it has been looked at.
func View(s Status, now time.Time, since time.Duration) []string {
	lines := []string{
		fmt.Sprintf("machine deployment %s, %s, %s", s.Key, title(s), duration.HumanDuration(since)),
		numbers(s) + deadline(s, now),
	}
	if len(s.Sets) > 0 {
		lines = append(append(lines, ""), table(s)...)
	}
	if len(s.Waits) > 0 {
		lines = append(lines, "", "Waiting:")
	}
	for _, wait := range s.Waits {
		lines = append(lines, item+wait.Text+ago(wait.Since, now))
	}
	if can := remedies(s); len(can) > 0 {
		lines = append(append(lines, "", "You can:"), can...)
	}
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return lines
}

// item is how an item of a list begins.
const item = "  - "

// remedies are those of all waits, each once.
func remedies(s Status) []string {
	var can []string
	for _, wait := range s.Waits {
		if line := item + wait.Remedy; wait.Remedy != "" && !slices.Contains(can, line) {
			can = append(can, line)
		}
	}
	return can
}

// ago is how long something lasts, to put behind it.
func ago(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (for %s)", duration.HumanDuration(max(0, now.Sub(since))))
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

// numbers are the counts of a status in a clause.
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
		fmt.Fprintf(columns, "%s\t%s\t%d\t%d\t%d\t%d\t%s\n", age(set), set.Name, set.Revision, set.Wanted, set.Exist, set.Available, tally(set))
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

// tally counts the machines of a set by phase: "2 Running, 1 Terminating".
func tally(set SetStatus) string {
	parts := make([]string, len(set.Phases))
	for i, phase := range set.Phases {
		parts[i] = fmt.Sprintf("%d %s", phase.Count, phase.Phase)
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// Line is a status in one line. It changes only when something does.
func Line(s Status) string {
	parts := []string{numbers(s)}
	for _, set := range s.Sets {
		parts = append(parts, fmt.Sprintf("%s set %s (revision %d): %s", age(set), set.Name, set.Revision, tally(set)))
	}
	if len(s.Waits) > 0 {
		text := "waiting: " + Shorten(s.Waits[0].Text)
		if more := len(s.Waits) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		parts = append(parts, text+can(s.Waits[0]))
	}
	return printable(strings.Join(parts, "; "))
}

// can is the remedy against what is waited for, to put behind it.
func can(wait Wait) string {
	if wait.Remedy == "" {
		return ""
	}
	return "; you can: " + Shorten(wait.Remedy)
}

// Shorten keeps a text to a length that can be read at a glance, with its end: there providers
// say what went wrong.
func Shorten(text string) string {
	const most = 240
	return messages.Shorten(text, most)
}

// printable is a text without what would move the cursor. Texts come from providers and
// users: nothing in them may reach a terminal but letters.
func printable(text string) string {
	return strings.TrimRight(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text), " ")
}

// Brief says in a clause how far a rollout is, and what it waits for first.
func Brief(s Status) string {
	text := numbers(s)
	if len(s.Waits) > 0 {
		text += "; waiting: " + Shorten(s.Waits[0].Text) + can(s.Waits[0])
	}
	return printable(text)
}
