package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/local/archives"
)

// Commands that do not follow a rule of TestCommands_FollowRules, with the reason.
var (
	// withoutOutput are commands that use a cluster and have no --output.
	withoutOutput = map[string]string{
		"millwright rollout status":  "shows progress, as kubectl rollout status",
		"millwright rollout diff":    "compares texts, as kubectl diff",
		"millwright vm console":      "connects input and output",
		"millwright vm logs":         "prints what the guest has written",
		"millwright vm vnc":          "connects input and output",
		"millwright vm screenshot":   "writes an image",
		"millwright vm reset":        "changes no object",
		"millwright vm fence":        "shows progress",
		"millwright vm port-forward": "connects input and output",
		"millwright vm ssh":          "connects input and output",
		"millwright vm scp":          "copies files",
		"millwright vm rollout":      "shows progress",
		"millwright ui":              "serves a page",
	}
	// withoutDryRun are commands that use a cluster and change nothing.
	withoutDryRun = map[string]string{
		"millwright explain":                   "reads",
		"millwright explain machine":           "reads",
		"millwright explain machineset":        "reads",
		"millwright explain machinedeployment": "reads",
		"millwright rollout status":            "reads",
		"millwright rollout history":           "reads",
		"millwright rollout diff":              "sends dry runs only",
		"millwright rollout replacements":      "reads",
		"millwright version":                   "reads",
		"millwright vm list":                   "reads",
		"millwright vm console":                "connects input and output",
		"millwright vm logs":                   "reads",
		"millwright vm vnc":                    "connects input and output",
		"millwright vm screenshot":             "reads",
		"millwright vm port-forward":           "connects input and output",
		"millwright vm ssh":                    "connects input and output",
		"millwright vm scp":                    "connects input and output",
		"millwright ui":                        "shows the command of each change, and asks first",
	}
	// withOutput are commands that use no cluster and print results.
	withOutput = []string{
		"millwright conformance", "millwright instance create", "millwright instance delete", "millwright instance list",
		"millwright instance status", "millwright managevm", "millwright status",
	}
)

// manyFlags is the number of flags above which the help shows them by section.
const manyFlags = 16

// TestCommands_FollowRules checks the rules for all commands that the help lists.
func TestCommands_FollowRules(t *testing.T) {
	root := newRoot("test", archives.Set{})
	seen := map[string]bool{}
	visit(root, func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		seen[path] = true
		if cmd.Parent() == root && cmd.GroupID == "" {
			t.Errorf("%s: has no group", path)
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short is %q", path, cmd.Short)
		}
		checkExample(t, cmd)
		checkFlags(t, cmd)
		if usesCluster(cmd) {
			checkRule(t, path, "--output", has(cmd, "output"), withoutOutput)
			checkRule(t, path, "--dry-run", has(cmd, "dry-run"), withoutDryRun)
			checkCompletion(t, cmd)
		}
	})
	for _, path := range withOutput {
		if cmd, _, err := root.Find(strings.Fields(path)[1:]); err != nil || cmd.CommandPath() != path || !has(cmd, "output") {
			t.Errorf("%s: has no --output (%v)", path, err)
		}
	}
	for _, exceptions := range []map[string]string{withoutOutput, withoutDryRun} {
		for path := range exceptions {
			if !seen[path] {
				t.Errorf("%s: is an exception, but does not exist", path)
			}
		}
	}
}

// visit calls see with all commands below one that the help lists.
func visit(cmd *cobra.Command, see func(*cobra.Command)) {
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			see(child)
			visit(child, see)
		}
	}
}

func has(cmd *cobra.Command, flag string) bool { return cmd.Flags().Lookup(flag) != nil }

// usesCluster reports whether a command has the flags that select a cluster and its context.
func usesCluster(cmd *cobra.Command) bool { return has(cmd, "context") }

// checkRule checks that a command has a flag, unless it is an exception.
func checkRule(t *testing.T, path, flag string, has bool, exceptions map[string]string) {
	t.Helper()
	if _, except := exceptions[path]; has == except {
		t.Errorf("%s: has %s: %t, is an exception: %t", path, flag, has, except)
	}
}

func checkExample(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	if !strings.Contains(cmd.Example, "  "+cmd.CommandPath()) {
		t.Errorf("%s: no example calls it: %q", cmd.CommandPath(), cmd.Example)
	}
}

func checkFlags(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	var visible []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Name == "help" {
			return
		}
		visible = append(visible, flag.Name)
		if flag.Usage == "" || strings.HasSuffix(flag.Usage, ".") || strings.Contains(flag.Usage, "\n") {
			t.Errorf("%s: --%s: usage %q", cmd.CommandPath(), flag.Name, flag.Usage)
		}
	})
	sections := args.Sections(cmd)
	if len(visible) > manyFlags && len(sections.Order) < 2 {
		t.Errorf("%s: %d flags are not in sections", cmd.CommandPath(), len(visible))
	}
	if len(sections.Order) == 0 || sections.FlagSets[args.General] == nil {
		return
	}
	sections.FlagSets[args.General].VisitAll(func(flag *pflag.Flag) {
		if !has(cmd, "context") && flag.Name != "help" { // commands with few flags of their own
			t.Errorf("%s: --%s is in no section", cmd.CommandPath(), flag.Name)
		}
	})
}

func checkCompletion(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	for _, flag := range []string{"context", "namespace", "output", "dry-run"} {
		if _, completes := cmd.GetFlagCompletionFunc(flag); has(cmd, flag) && !completes {
			t.Errorf("%s: --%s has no completion", cmd.CommandPath(), flag)
		}
	}
	if strings.Contains(cmd.Use, "NAME") && cmd.ValidArgsFunction == nil {
		t.Errorf("%s: names have no completion", cmd.CommandPath())
	}
}

// TestHelp_NamesProgram checks that the help names commands as the user calls them.
func TestHelp_NamesProgram(t *testing.T) {
	for _, program := range []string{Plugin, "machine-controller", "machine-controller-manager", "managevm"} {
		root := newRootFor(Program{Name: "/usr/bin/" + program})
		is := root.CommandPath()
		check := func(cmd *cobra.Command) {
			for line := range strings.SplitSeq(cmd.Example, "\n") {
				if command, is := strings.CutPrefix(line, "  millwright "); is {
					t.Errorf("%s: an example calls millwright %s", cmd.CommandPath(), command)
				}
			}
		}
		visit(root, check)
		check(root)
		if !strings.Contains(root.Example, "  "+is+" ") {
			t.Errorf("%s: example %q", is, root.Example)
		}
	}
	plugin := newRootFor(Program{Name: Plugin})
	up, _, err := plugin.Find([]string{"down"})
	if err != nil || !strings.Contains(up.Long, `"kubectl millwright up"`) {
		t.Errorf("%q, %v", up.Long, err)
	}
}

// TestHelp_ShowsGroupsAndSections checks the help of the program, and of a command with many flags.
func TestHelp_ShowsGroupsAndSections(t *testing.T) {
	help := printed(t, "--help")
	at := -1
	for _, title := range []string{"Exit status:", "Local cluster:", "Machines:", "Virtual machines:", "Run in a cluster:", "Drivers:", "Other commands:"} {
		next := strings.Index(help, "\n"+title)
		if next <= at {
			t.Errorf("%q is missing or in another order:\n%s", title, help)
		}
		at = next
	}
	for _, internal := range []string{"hostrunner", "disk-server", "  hypervisor"} {
		if strings.Contains(help, internal) {
			t.Errorf("lists %s:\n%s", internal, help)
		}
	}
	if help := printed(t, "manager", "--help"); !strings.Contains(help, "\nCluster flags:\n") || !strings.Contains(help, "\nLeader election flags:\n") || strings.Contains(help, "\nFlags:") {
		t.Errorf("flags of the manager:\n%s", help)
	}
}
