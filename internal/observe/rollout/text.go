package rollout

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// View returns a status as lines for a terminal. since is how long it has been shown.
func View(s Status, now time.Time, since time.Duration) []string {
	lines := []string{
		fmt.Sprintf("machine deployment %s, %s, %s", s.Key, title(s), duration.HumanDuration(since)),
		numbers(s) + deadline(s, now),
	}
	if len(s.Sets) > 0 {
		lines = append(append(lines, ""), table(s)...)
	}
	if len(s.Classes) > 0 {
		lines = append(append(lines, ""), s.Classes...)
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
		lines = append(append(lines, "", "What you can do:"), can...)
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
	text := fmt.Sprintf("%d of %d updated, %d available", s.Updated, s.Desired, s.Available)
	if s.Updated > s.Desired {
		text = fmt.Sprintf("%d desired, %d updated, %d available", s.Desired, s.Updated, s.Available)
	}
	if old := s.Old(); old > 0 {
		text += fmt.Sprintf(", %d old", old)
	}
	if s.Excess > 0 {
		text += fmt.Sprintf(", %d in excess", s.Excess)
	}
	if s.Preserved > 0 {
		text += fmt.Sprintf(", %d preserved", s.Preserved)
	}
	return text
}

func deadline(s Status, now time.Time) string {
	switch left := s.Deadline.Sub(now); {
	case s.Outcome == Late:
		return fmt.Sprintf("; no progress for more than %s (progress deadline exceeded)", duration.HumanDuration(s.Limit))
	case s.Deadline.IsZero() || s.Outcome == Complete:
		return ""
	case left > 0:
		return fmt.Sprintf("; must progress within %s", duration.HumanDuration(left))
	}
	return "; progress deadline exceeded"
}

func table(s Status) []string {
	var text strings.Builder
	columns := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(columns, "\tSET\tREVISION\tDESIRED\tEXIST\tAVAILABLE\tMACHINES")
	for _, set := range newestFirst(s.Sets) {
		fmt.Fprintf(columns, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", age(set), set.Name, set.Revision, set.Desired, set.Exist+set.Leaving, set.Available, phases(set))
	}
	_ = columns.Flush() // writing to memory cannot fail
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
}

// newestFirst returns the set of the current template, followed by the others from newest to
// oldest.
func newestFirst(sets []report.Part) []report.Part {
	number := func(set report.Part) int64 {
		n, _ := strconv.ParseInt(set.Revision, 10, 64) // 0 if it has none
		return n
	}
	sets = slices.Clone(sets)
	slices.Reverse(sets)
	slices.SortStableFunc(sets, func(a, b report.Part) int { // "new" is before "old"
		return cmp.Or(cmp.Compare(age(a), age(b)), cmp.Compare(number(b), number(a)))
	})
	return sets
}

func age(set report.Part) string {
	if set.Current {
		return "new"
	}
	return "old"
}

// phaseOrder is the order in which phases are printed. Unlisted phases come first.
var phaseOrder = []string{
	report.NoPhase, string(v1alpha1.MachinePending), string(v1alpha1.MachineAvailable), string(v1alpha1.MachineRunning),
	string(v1alpha1.MachineInPlaceUpdating), string(v1alpha1.MachineInPlaceUpdateSuccessful), string(v1alpha1.MachineInPlaceUpdateFailed),
	string(v1alpha1.MachineUnknown), string(v1alpha1.MachineFailed), string(v1alpha1.MachineCrashLoopBackOff),
	string(v1alpha1.MachineTerminating),
}

// phases describes how many machines of a set are in each phase.
func phases(set report.Part) string {
	var parts []string
	for phase, n := range set.Phases {
		parts = append(parts, fmt.Sprintf("%d %s", n, phase))
	}
	slices.SortFunc(parts, func(a, b string) int {
		rank := func(part string) int { return slices.Index(phaseOrder, part[strings.Index(part, " ")+1:]) }
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// Line returns a status in one line. The line does not depend on the time.
func Line(s Status) string {
	parts := []string{numbers(s)}
	for _, set := range newestFirst(s.Sets) {
		parts = append(parts, fmt.Sprintf("%s set %s (revision %s): %s", age(set), set.Name, set.Revision, phases(set)))
	}
	more := ""
	if n := len(s.Waits) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return messages.Line(strings.Join(parts, "; ") + waiting(s, more))
}

// Brief returns the progress of a rollout, and the first thing it waits for, as a clause.
func Brief(s Status) string { return messages.Line(numbers(s) + waiting(s, "")) }

// waiting describes the first thing a rollout waits for, and the remedy. Long texts are cut in the
// middle because provider errors have the cause at the end.
func waiting(s Status, more string) string {
	const most = 240
	if len(s.Waits) == 0 {
		return ""
	}
	text := "; waiting: " + messages.Shorten(s.Waits[0].Text, most) + more
	if remedy := s.Waits[0].Remedy; remedy != "" {
		text += "; next step: " + messages.Shorten(remedy, most)
	}
	return text
}

// annotationCause is the annotation in which users and kubectl record why they changed an object.
const annotationCause = "kubernetes.io/change-cause"

// Revisions returns the MachineSets of the revisions of a deployment, from oldest to newest.
func Revisions(f Facts) []*v1alpha1.MachineSet { return revision.Sorted(f.Sets) }

// PrintHistory prints the revisions of a deployment, one per line, from oldest to newest.
func PrintHistory(out io.Writer, f Facts, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "REVISION\tSET\tCLASS\tAGE\tMACHINES\tCHANGE-CAUSE")
	current := f.Current()
	for _, set := range Revisions(f) {
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
	set, err := Find(f, number)
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
