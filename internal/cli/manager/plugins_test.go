package manager

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/driver/plugin"
)

func TestFlagsOfPlugins(t *testing.T) {
	files := plugin.Files{Certificate: "a", Key: "b", CA: "c"}
	for name, tt := range map[string]struct {
		flags PluginFlags
		want  string // part of the error; empty: none
	}{
		"none":                      {PluginFlags{}, ""},
		"a socket":                  {PluginFlags{Socket: "/run/x"}, ""},
		"files without an address":  {PluginFlags{Files: files}, "need --driver-listen"},
		"loopback flag alone":       {PluginFlags{Insecure: true}, "need --driver-listen"},
		"an address without TLS":    {PluginFlags{Listen: "127.0.0.1:5000"}, "--driver-insecure-loopback"},
		"half of the files":         {PluginFlags{Listen: ":5000", Files: plugin.Files{Certificate: "a"}}, "--driver-client-ca-file"},
		"files that are not there":  {PluginFlags{Listen: ":5000", Files: files}, "certificate a with key b"},
		"insecure, but everywhere":  {PluginFlags{Listen: ":5000", Insecure: true}, "loopback addresses"},
		"insecure with files":       {PluginFlags{Listen: "127.0.0.1:5000", Insecure: true, Files: files}, "excludes"},
		"insecure on the loopback":  {PluginFlags{Listen: "[::1]:5000", Insecure: true}, ""},
		"insecure, but not a port":  {PluginFlags{Listen: "127.0.0.1", Insecure: true}, "missing port"},
		"insecure at a host's name": {PluginFlags{Listen: "localhost:5000", Insecure: true}, "loopback addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.flags.validate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q", err, tt.want)
			}
		})
	}
}
