package cli

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/test/support/env"
)

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
	var file struct {
		Plugins map[string]struct {
			ShortCut, Description, Command string
			Scopes, Args                   []string
			Confirm, Background            bool
		}
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(file.Plugins)) {
		plugin := file.Plugins[name]
		for _, scope := range plugin.Scopes {
			if other := keys[scope+plugin.ShortCut]; other != "" {
				t.Errorf("%s and %s have the key %s", name, other, plugin.ShortCut)
			}
			keys[scope+plugin.ShortCut] = name
		}
		if want := []string{"sh", "$NAME", "$NAMESPACE", "$CONTEXT"}; plugin.Command != "sh" || len(plugin.Args) != 6 || !slices.Equal(plugin.Args[2:], want) {
			t.Errorf("%s runs %s %q", name, plugin.Command, plugin.Args)
			continue
		}
		line, _, _ := strings.Cut(plugin.Args[1], " |")
		line, _, _ = strings.Cut(line, ";")
		arguments, ok := strings.CutPrefix(line, "kubectl millwright ")
		command, flags, err := Root("").Find(strings.Fields(arguments))
		if !ok || err != nil || !command.Runnable() {
			t.Errorf("%s: %s is not a command: %v", name, line, err)
			continue
		}
		if err := command.ParseFlags(flags); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if migrates := command.Name() == "migrate"; migrates != plugin.Confirm {
			t.Errorf("%s asks for confirmation: %t", name, plugin.Confirm)
		}
		command.Flags().Visit(func(flag *pflag.Flag) {
			if !strings.HasPrefix(flag.Value.String(), `"$`) {
				t.Errorf("%s sets --%s to %s", name, flag.Name, flag.Value)
			}
		})
	}
	if len(file.Plugins) < 5 {
		t.Errorf("found only %d plug-ins", len(file.Plugins))
	}
}
