package instance

import (
	"fmt"
	"io"
	"strings"

	"github.com/millwright-dev/millwright/internal/cli/output"
)

// Names implements output.Named.
func (r result) Names() []string { return []string{r.Name} }

// print prints a result. The first two lines are managevm's.
func (r result) print(w io.Writer) error {
	var lines strings.Builder
	if r.ProviderID != "" {
		fmt.Fprintf(&lines, "Machine id: %s\n", r.ProviderID)
	}
	fmt.Fprintf(&lines, "Name: %s\n", r.Name)
	if r.NodeName != "" {
		fmt.Fprintf(&lines, "Node: %s\n", r.NodeName)
	}
	for _, address := range r.Addresses {
		fmt.Fprintf(&lines, "%s: %s\n", address.Type, address.Address)
	}
	state := string(r.State)
	if r.DryRun {
		state += " (dry run: nothing was changed)"
	}
	fmt.Fprintf(&lines, "State: %s\n", state)
	_, err := io.WriteString(w, lines.String())
	return err
}

// results are the VMs of a class.
type results struct {
	Machines []result `json:"machines"`
}

// Names implements output.Named.
func (r results) Names() (names []string) {
	for _, one := range r.Machines {
		names = append(names, one.Name)
	}
	return names
}

func (r results) table() output.Table {
	all := output.Table{Columns: []output.Column{{Title: "NAME"}, {Title: "MACHINE ID"}, {Title: "STATE", Wide: true}}}
	for _, one := range r.Machines {
		all.Rows = append(all.Rows, []string{one.Name, one.ProviderID, string(one.State)})
	}
	return all
}
