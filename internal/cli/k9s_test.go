package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/test/support/env"
)

// k9sPlugin is a command of k9s.
type k9sPlugin struct {
	ShortCut, Description, Command string
	Scopes, Args                   []string
	Confirm, Background            bool
}

// TestK9s_CommandsExist checks that the plug-ins for k9s run commands and flags that exist, and pass values of k9s as
// arguments: a name that is part of a shell's script would be executed.
func TestK9s_CommandsExist(t *testing.T) {
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "config", "k9s", "plugins.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Plugins map[string]k9sPlugin }
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Plugins) < 5 {
		t.Errorf("found only %d plug-ins", len(file.Plugins))
	}
	keys := map[string]string{}
	for name, plugin := range file.Plugins {
		for _, scope := range plugin.Scopes {
			if other := keys[scope+plugin.ShortCut]; other != "" {
				t.Errorf("%s and %s have the key %s", name, other, plugin.ShortCut)
			}
			keys[scope+plugin.ShortCut] = name
		}
		t.Run(name, plugin.check)
	}
}

func (p k9sPlugin) check(t *testing.T) {
	if want := []string{"sh", "$NAME", "$NAMESPACE", "$CONTEXT"}; p.Command != "sh" || len(p.Args) != 6 || !slices.Equal(p.Args[2:], want) {
		t.Fatalf("it runs %s %q", p.Command, p.Args)
	}
	line, _, _ := strings.Cut(p.Args[1], " |")
	line, _, _ = strings.Cut(line, ";")
	arguments, ok := strings.CutPrefix(line, "kubectl millwright ")
	command, flags, err := Root("").Find(strings.Fields(arguments))
	if !ok || err != nil || !command.Runnable() {
		t.Fatalf("%s is not a command: %v", line, err)
	}
	if err := command.ParseFlags(flags); err != nil {
		t.Error(err)
	}
	if migrates := command.Name() == "migrate"; migrates != p.Confirm {
		t.Errorf("it asks for confirmation: %t", p.Confirm)
	}
	command.Flags().Visit(func(flag *pflag.Flag) {
		if !strings.HasPrefix(flag.Value.String(), `"$`) {
			t.Errorf("it sets --%s to %s", flag.Name, flag.Value)
		}
	})
}
