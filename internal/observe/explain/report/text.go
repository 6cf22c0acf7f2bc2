package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Print writes a report as text for users.
func Print(out io.Writer, r Report) error {
	p := &printer{Report: r}
	p.line("%s", r.Summary)
	if r.Pool != nil {
		p.pool()
	} else {
		p.identity()
	}
	section(p, "Why", p.Why, p.finding)
	section(p, "Why it was deleted", p.Replaced, p.finding)
	section(p, "What happens next", p.Next, func(step Step) string { return "- " + p.when(step) + step.Text })
	item := func(text string) string { return "- " + text }
	section(p, "What you can do", p.Advice, item)
	section(p, "Last lines of the VM's console (written by the guest)", p.Console, func(line string) string { return "| " + line })
	section(p, "Recent events", p.Events, p.event)
	section(p, "Could not read", p.Unread, item)
	if _, err := io.WriteString(out, p.text.String()); err != nil {
		return fmt.Errorf("writing the explanation: %w", err)
	}
	return nil
}

type printer struct {
	Report
	text strings.Builder
}

// line writes one line. Texts come from providers, pods and users, so control characters, which could move the
// cursor of a terminal, are replaced.
func (p *printer) line(format string, args ...any) {
	p.text.WriteString(messages.Line(fmt.Sprintf(format, args...)) + "\n")
}

// section writes a title and a line for each item. It writes nothing if there are no items.
func section[T any](p *printer, title string, items []T, text func(T) string) {
	if len(items) == 0 {
		return
	}
	p.line("")
	p.line("%s:", title)
	for i, item := range items {
		const most = 8
		if _, limited := any(item).(Finding); limited && i == most {
			p.line("  - and %d more (use -o json to show all)", len(items)-most)
			return
		}
		p.line("  %s", text(item))
	}
}

// described joins the pairs of a name and a value whose value is not empty.
func described(first string, pairs ...string) string {
	var parts []string
	if first != "" {
		parts = append(parts, first)
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			parts = append(parts, pairs[i]+" "+pairs[i+1])
		}
	}
	return strings.Join(parts, "; ")
}

func (p *printer) identity() {
	id, set, phase := p.Identity, "", p.Identity.Phase
	if id.Set != "" {
		set = fmt.Sprintf("%s (%s ready)", id.Set, id.SetReady)
	}
	if since := p.since(p.Since); since != "" {
		if phase == "" && p.Verdict != Gone {
			phase = NoPhase
		}
		phase = strings.TrimPrefix(phase+since, ", ")
	}
	text := described(phase, "provider ID", id.ProviderID, "node", id.Node, "class", id.Class, "set", set, "deployment", id.Deployment)
	if text != "" {
		p.line("  %s", text)
	}
}

func (p *printer) pool() {
	pool, updated := p.Pool, ""
	if p.MachineDeployment != "" {
		updated = fmt.Sprintf(" %d of the latest template,", pool.Updated)
	}
	counts := fmt.Sprintf("%d desired; %d exist,%s %d ready, %d available", pool.Desired, pool.Exist, updated, pool.Ready, pool.Available)
	if pool.Leaving > 0 {
		counts += fmt.Sprintf("; %d more being deleted", pool.Leaving)
	}
	if pool.Preserved > 0 {
		counts += fmt.Sprintf("; %d preserved", pool.Preserved)
	}
	p.line("  %s", described(counts, "class", p.Identity.Class, "deployment", p.Identity.Deployment))
	for _, set := range pool.Sets {
		if set.Empty() {
			continue
		}
		p.line("  set %s (revision %s): %d desired, %d exist, %d available", set.Name, set.Revision, set.Desired, set.Exist, set.Available)
	}
}

func (p *printer) finding(f Finding) string { return "- " + f.String() + p.since(f.Since) }

func (p *printer) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(", since %s (%s)", Clock(t, p.At), duration.HumanDuration(p.At.Sub(t)))
}

func (p *printer) when(step Step) string {
	at, left, earliest := Clock(step.At, p.At), step.At.Sub(p.At), ""
	switch {
	case step.At.IsZero():
		return ""
	case left <= 0:
		return "Due since " + at + ": "
	case step.Earliest:
		earliest = " at the earliest"
	}
	return fmt.Sprintf("At %s (in %s)%s: ", at, duration.HumanDuration(left), earliest)
}

func (p *printer) event(event Event) string {
	times := ""
	if event.Count > 1 {
		times = fmt.Sprintf(" (%d times)", event.Count)
	}
	return fmt.Sprintf("%s  %-7s  %s  %s: %s%s", Clock(event.At, p.At), event.Type, event.Object, event.Reason, event.Text, times)
}

// Clock returns the time of day in UTC, with the date if it differs from the date of now.
func Clock(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04:05Z")
	}
	return t.Format("2006-01-02 15:04:05Z")
}
