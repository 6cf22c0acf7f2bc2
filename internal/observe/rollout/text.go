package rollout

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
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
		lines[i] = messages.Line(lines[i])
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
	return messages.Line(strings.Join(parts, "; ") + waiting(s, more))
}

// Brief returns in a clause how far a rollout is, and what it waits for first.
func Brief(s Status) string { return messages.Line(numbers(s) + waiting(s, "")) }

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

// annotationCause is where users and kubectl note why they changed something.
const annotationCause = "kubernetes.io/change-cause"

// PrintHistory prints the revisions of a deployment, one a line, from old to new.
func PrintHistory(out io.Writer, f Facts, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REVISION\tSET\tCLASS\tAGE\tMACHINES\tCHANGE-CAUSE")
	current := f.Current()
	for _, set := range revision.Sorted(f.Sets) {
		mark := ""
		if set == current {
			mark = " (current)"
		}
		fmt.Fprintf(table, "%d%s\t%s\t%s\t%s\t%d\t%s\n", revision.Number(set), mark, set.Name, messages.Line(set.Spec.Template.Spec.Class.Name),
			duration.HumanDuration(now.Sub(set.CreationTimestamp.Time)), len(f.Of(set)), cause(set))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the history: %w", err)
	}
	return nil
}

func cause(set *v1alpha1.MachineSet) string {
	return cmp.Or(messages.Line(set.Annotations[annotationCause]), "<none>")
}

// PrintRevision prints the template of one revision as YAML.
func PrintRevision(out io.Writer, f Facts, number int64) error {
	set, err := find(f, number)
	if err != nil {
		return err
	}
	template := set.Spec.Template.DeepCopy()
	delete(template.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	text, err := yaml.Marshal(template)
	if err != nil {
		return fmt.Errorf("writing the template: %w", err)
	}
	_, err = fmt.Fprintf(out, "# Revision %d of machine deployment %s/%s, machine set %s, changed because of: %s\n%s",
		number, f.Deployment.Namespace, f.Deployment.Name, set.Name, cause(set), text)
	if err != nil {
		return fmt.Errorf("writing the template: %w", err)
	}
	return nil
}
