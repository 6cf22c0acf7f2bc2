package report

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/duration"
)

// mostFindings is how many findings of one kind are printed.
const mostFindings = 8

// Print writes a report as text for people.
func Print(out io.Writer, r Report) error {
	p := &printer{report: r}
	p.line("%s", r.Answer)
	if r.Pool != nil {
		p.pool(*r.Pool)
	} else {
		p.identity()
	}
	p.findings("Why", r.Why)
	p.findings("Why it was deleted", r.Replaced)
	p.steps()
	p.list("You can", r.Advice)
	p.events()
	p.list("Could not read", r.Unread)
	if _, err := io.WriteString(out, p.text.String()); err != nil {
		return fmt.Errorf("writing the explanation: %w", err)
	}
	return nil
}

type printer struct {
	report Report
	text   strings.Builder
}

// line writes one line. Texts come from providers, pods and users: nothing in them may
// reach a terminal but letters.
func (p *printer) line(format string, args ...any) {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, fmt.Sprintf(format, args...))
	p.text.WriteString(strings.TrimRight(text, " ") + "\n")
}

func (p *printer) identity() {
	id := p.report.Identity
	var parts []string
	for _, part := range []struct{ name, value string }{
		{"provider ID", id.ProviderID}, {"node", id.Node}, {"class", id.Class}, {"set", p.set()}, {"deployment", id.Deployment},
	} {
		if part.value != "" {
			parts = append(parts, part.name+" "+part.value)
		}
	}
	if since := p.since(p.report.Since); id.Phase != "" || since != "" {
		parts = append([]string{strings.TrimPrefix(p.phase()+since, ", ")}, parts...)
	}
	if len(parts) > 0 {
		p.line("  %s", strings.Join(parts, "; "))
	}
}

// pool prints what there is of a set or deployment.
func (p *printer) pool(pool Pool) {
	counts := fmt.Sprintf("%d wanted; %d exist, %d ready, %d available", pool.Wanted, pool.Exist, pool.Ready, pool.Available)
	if p.report.MachineDeployment != "" {
		counts = strings.Replace(counts, " exist,", fmt.Sprintf(" exist, %d of the newest template,", pool.Updated), 1)
	}
	if pool.Leaving > 0 {
		counts += fmt.Sprintf("; %d more being deleted", pool.Leaving)
	}
	if pool.Preserved > 0 {
		counts += fmt.Sprintf("; %d preserved", pool.Preserved)
	}
	for _, part := range []struct{ name, value string }{{"class", p.report.Identity.Class}, {"deployment", p.report.Identity.Deployment}} {
		if part.value != "" {
			counts += "; " + part.name + " " + part.value
		}
	}
	p.line("  %s", counts)
	for _, set := range pool.Sets {
		p.line("  set %s (revision %s): %d wanted, %d exist, %d available", set.Name, set.Revision, set.Wanted, set.Exist, set.Available)
	}
}

func (p *printer) set() string {
	id := p.report.Identity
	if id.Set == "" {
		return ""
	}
	return fmt.Sprintf("%s (%s ready)", id.Set, id.SetReady)
}

func (p *printer) phase() string {
	if phase := p.report.Identity.Phase; phase != "" || p.report.Verdict == Gone {
		return phase
	}
	return "New"
}

func (p *printer) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(", since %s (%s)", Clock(t, p.report.At), duration.HumanDuration(p.report.At.Sub(t)))
}

func (p *printer) findings(title string, findings []Finding) {
	if len(findings) == 0 {
		return
	}
	p.line("")
	p.line("%s:", title)
	for _, finding := range findings[:min(len(findings), mostFindings)] {
		p.line("  - %s%s", finding.String(), p.since(finding.Since))
	}
	if more := len(findings) - mostFindings; more > 0 {
		p.line("  - and %d more: -o json shows all", more)
	}
}

func (p *printer) steps() {
	if len(p.report.Next) == 0 {
		return
	}
	p.line("")
	p.line("What happens next:")
	for _, step := range p.report.Next {
		p.line("  - %s%s", p.when(step), step.Text)
	}
}

func (p *printer) when(step Step) string {
	if step.At.IsZero() {
		return ""
	}
	at := Clock(step.At, p.report.At)
	left := step.At.Sub(p.report.At)
	if left <= 0 {
		return "Due since " + at + ": "
	}
	earliest := ""
	if step.Earliest {
		earliest = " at the earliest"
	}
	return fmt.Sprintf("At %s (in %s)%s: ", at, duration.HumanDuration(left), earliest)
}

func (p *printer) list(title string, items []string) {
	if len(items) == 0 {
		return
	}
	p.line("")
	p.line("%s:", title)
	for _, item := range items {
		p.line("  - %s", item)
	}
}

func (p *printer) events() {
	if len(p.report.Events) == 0 {
		return
	}
	p.line("")
	p.line("Last events:")
	for _, event := range p.report.Events {
		times := ""
		if event.Count > 1 {
			times = fmt.Sprintf(" (%d times)", event.Count)
		}
		p.line("  %s  %-7s  %s  %s: %s%s", Clock(event.At, p.report.At), event.Type, event.Object, event.Reason, event.Text, times)
	}
}

// Clock is a time of the day, in UTC, with the date unless it is the same day.
func Clock(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04:05Z")
	}
	return t.Format("2006-01-02 15:04:05Z")
}
