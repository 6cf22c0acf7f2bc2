package instance

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// The values of --output.
const (
	outputText = "text"
	outputJSON = "json"
)

func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// print prints a result. The first two lines are managevm's.
func (r result) print(w io.Writer, output string) error {
	if output == outputJSON {
		return printJSON(w, r)
	}
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

func printList(w io.Writer, all []result, output string) error {
	if output == outputJSON {
		return printJSON(w, map[string]any{"machines": all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "No VMs found.")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAME\tMACHINE ID")
	for _, one := range all {
		fmt.Fprintf(table, "%s\t%s\n", one.Name, one.ProviderID)
	}
	return table.Flush()
}
