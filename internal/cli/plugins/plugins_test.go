package plugins

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/driver/plugin"
)

func TestFlags(t *testing.T) {
	files := plugin.Files{Certificate: "a", Key: "b", CA: "c"}
	for name, tt := range map[string]struct {
		flags Flags
		want  string // part of the error; empty if valid
	}{
		"none":                      {Flags{}, ""},
		"a socket":                  {Flags{Socket: "/run/x"}, ""},
		"files without an address":  {Flags{Files: files}, "require --driver-listen"},
		"loopback flag alone":       {Flags{Insecure: true}, "require --driver-listen"},
		"an address without TLS":    {Flags{Listen: "127.0.0.1:5000"}, "--driver-insecure-loopback"},
		"half of the files":         {Flags{Listen: ":5000", Files: plugin.Files{Certificate: "a"}}, "--driver-client-ca-file"},
		"files that are not there":  {Flags{Listen: ":5000", Files: files}, "certificate a with key b"},
		"insecure, but everywhere":  {Flags{Listen: ":5000", Insecure: true}, "loopback addresses"},
		"insecure with files":       {Flags{Listen: "127.0.0.1:5000", Insecure: true, Files: files}, "cannot be used with"},
		"insecure on the loopback":  {Flags{Listen: "[::1]:5000", Insecure: true}, ""},
		"insecure, but not a port":  {Flags{Listen: "127.0.0.1", Insecure: true}, "missing port"},
		"insecure at a host's name": {Flags{Listen: "localhost:5000", Insecure: true}, "loopback addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.flags.Validate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q", err, tt.want)
			}
		})
	}
}
