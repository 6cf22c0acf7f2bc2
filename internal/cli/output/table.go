package output

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millwright-dev/millwright/internal/cli/terminal"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Column is a column of a table.
type Column struct {
	// Title is in capital letters.
	Title string
	// Wide columns are shown only with --output=wide.
	Wide bool
}

// phaseTitle is the title of the column whose cells are colored on a terminal.
const phaseTitle = "PHASE"

// Table is a list as text.
type Table struct {
	Columns []Column
	// Rows have a cell for each column.
	Rows [][]string
}

// Print prints the table, or none if it has no rows. Cells may contain any text: they are printed in one line. On a
// terminal, phases have colors unless NO_COLOR is set.
func (t Table) Print(out io.Writer, format Format, none string) error {
	if len(t.Rows) == 0 {
		_, err := fmt.Fprintln(out, none)
		return err
	}
	var text strings.Builder
	writer := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	titles := make([]string, len(t.Columns))
	for i, column := range t.Columns {
		titles[i] = column.Title
	}
	for _, row := range slices.Concat([][]string{titles}, t.Rows) {
		var cells []string
		for i, cell := range row {
			if !t.Columns[i].Wide || format.IsWide() {
				cells = append(cells, messages.Line(cell))
			}
		}
		fmt.Fprintln(writer, strings.Join(cells, "\t"))
	}
	if err := writer.Flush(); err != nil {
		return err
	}
	printed := text.String()
	if Colored(out) {
		printed, out = colored(messages.ToPrintable(printed)), terminal.Raw(out)
	}
	_, err := io.WriteString(out, printed)
	return err
}

// Colored reports whether an output gets colors: it is a terminal, and the environment does not set NO_COLOR.
func Colored(out io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && terminal.Open(out) != nil
}

// Control sequences of colors.
const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	reset  = "\x1b[0m"
)

// colors are those of the phases of Machines and VirtualMachines. Other phases have none.
var colors = map[string]string{
	"Available": green, "Running": green, "InPlaceUpdateSuccessful": green,
	"Creating": yellow, "InPlaceUpdating": yellow, "Pending": yellow, "Stopped": yellow, "Terminating": yellow, "Unknown": yellow,
	"CrashLoopBackOff": red, "Failed": red, "InPlaceUpdateFailed": red, "Lost": red,
}

// colored adds colors to the column of phases of a printed table, whose columns are aligned.
func colored(table string) string {
	lines := strings.SplitAfter(table, "\n")
	at := -1
	for i, line := range lines {
		if i == 0 {
			if at = strings.Index(line, phaseTitle); at < 0 {
				return table
			}
			continue
		}
		letters := []rune(line) // columns are aligned by letters, and titles are ASCII
		if at >= len(letters) {
			continue
		}
		phase, rest, _ := strings.Cut(string(letters[at:]), " ")
		if color := colors[phase]; color != "" {
			lines[i] = string(letters[:at]) + color + phase + reset + " " + rest
		}
	}
	return strings.Join(lines, "")
}
