package program

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/terminal"
)

// The functions of templates are shared by all commands of a process.
func init() { cobra.AddTemplateFunc("sections", sections) }

// setHelp makes the help of all commands show flags by section, and name the commands as the user calls them.
func setHelp(root *cobra.Command) {
	const all = "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), all, "{{sections .}}", 1))
	rename(root, root)
}

// sections returns the flags of a command as its help shows them.
func sections(cmd *cobra.Command) string {
	// While the help is composed, the command writes to memory.
	named, columns := args.Sections(cmd), terminal.Columns(cmd.Root().OutOrStdout())
	if len(named.Order) == 0 {
		return "Flags:\n" + trimmed(cmd.LocalFlags().FlagUsagesWrapped(columns))
	}
	var text strings.Builder
	cliflag.PrintSections(&text, named, columns)
	return strings.TrimPrefix(trimmed(text.String()), "\n")
}

func trimmed(text string) string { return strings.TrimRight(text, " \n") }

// Rename makes the help of a command and of those below it call the program by another name, such as that of a kubectl
// plug-in.
func Rename(root *cobra.Command, name string) *cobra.Command {
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	rename(root, root)
	return root
}

// called matches a command in a text, such as "millwright vm list".
var called = regexp.MustCompile(`(kubectl )?\bmillwright ([a-z][a-z-]*)`)

// rename replaces "millwright" in the texts of a command and those below it by the name of the program that has the
// command: that of a kubectl plug-in, of the program of a driver, or of a program of MCM.
func rename(root, cmd *cobra.Command) {
	is := root.CommandPath()
	if is == "millwright" {
		return
	}
	renamed := func(text string) string {
		return called.ReplaceAllStringFunc(text, func(found string) string {
			match := called.FindStringSubmatch(found)
			switch {
			case match[1] != "":
			case match[2] == root.Name():
				return is
			case has(root, match[2]):
				return is + " " + match[2]
			}
			return found
		})
	}
	cmd.Long, cmd.Example = renamed(cmd.Long), renamed(cmd.Example)
	for _, child := range cmd.Commands() {
		rename(root, child)
	}
}

func has(root *cobra.Command, name string) bool {
	for _, child := range root.Commands() {
		if child.Name() == name || child.HasAlias(name) {
			return true
		}
	}
	return name == "help" || name == "completion"
}
