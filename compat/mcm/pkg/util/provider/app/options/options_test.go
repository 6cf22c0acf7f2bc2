package options_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/app/options"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/driver"
)

// TestFlags_AreThoseOfMCM: the program has all flags of MCM's machine-controller with their defaults.
func TestFlags_AreThoseOfMCM(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.NewMCServer().AddFlags(flags)
	for name, value := range map[string]string{
		"port": "10259", "address": "0.0.0.0", "cloud-provider": "", "concurrent-syncs": "50", "min-resync-period": "12h0m0s",
		"profiling": "false", "contention-profiling": "false", "target-kubeconfig": "", "control-kubeconfig": "",
		"namespace": "default", "kube-api-content-type": "application/vnd.kubernetes.protobuf", "kube-api-qps": "20",
		"kube-api-burst": "30", "controller-start-interval": "0s", "leader-elect": "true", "leader-elect-lease-duration": "15s",
		"leader-elect-renew-deadline": "10s", "leader-elect-retry-period": "2s", "leader-elect-resource-lock": "leases",
		"machine-creation-timeout": "20m0s", "machine-health-timeout": "10m0s", "machine-drain-timeout": "2h0m0s",
		"machine-inplace-update-timeout": "20m0s", "machine-preserve-timeout": "96h0m0s", "machine-max-evict-retries": "360",
		"machine-pv-detach-timeout": "2m0s", "machine-pv-reattach-timeout": "1m30s",
		"machine-safety-apiserver-statuscheck-timeout": "30s", "machine-safety-apiserver-statuscheck-period": "1m0s",
		"machine-safety-orphan-vms-period": "15m0s", "node-conditions": "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable",
		"bootstrap-token-auth-extra-groups": "", "resource-exhausted-retry": "10m0s", "v": "0",
	} {
		flag := flags.Lookup(name)
		if flag == nil {
			t.Errorf("flag --%s is missing", name)
		} else if got := flag.Value.String(); got != value {
			t.Errorf("got default %[2]q of --%[1]s, want %[3]q", name, got, value)
		}
	}
	for _, name := range []string{"logging-format", "vmodule", "logtostderr", "stderrthreshold"} {
		if flags.Lookup(name) == nil {
			t.Errorf("flag --%s is missing", name)
		}
	}
	for _, name := range []string{"driver", "apis", "safety-up"} {
		if flags.Lookup(name) != nil {
			t.Errorf("this program must not have the flag --%s", name)
		}
	}
}

// TestFields_HaveValuesOfFlags: a field has the value of its flag.
func TestFields_HaveValuesOfFlags(t *testing.T) {
	s := options.NewMCServer()
	if s.Namespace != "default" || s.Address != "0.0.0.0" || s.TargetKubeconfig != "" || s.ControlKubeconfig != "" {
		t.Errorf("got defaults %q %q %q %q", s.Namespace, s.Address, s.TargetKubeconfig, s.ControlKubeconfig)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.AddFlags(flags)
	arguments := []string{"--namespace=n", "--address=127.0.0.1", "--target-kubeconfig", "t", "--control-kubeconfig=c"}
	if err := flags.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	if s.Namespace != "n" || s.Address != "127.0.0.1" || s.TargetKubeconfig != "t" || s.ControlKubeconfig != "c" {
		t.Errorf("after parsing: got %q %q %q %q", s.Namespace, s.Address, s.TargetKubeconfig, s.ControlKubeconfig)
	}
}

// listing is a driver that counts calls of ListMachines.
type listing struct {
	driver.Driver
	calls int
}

func (l *listing) ListMachines(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	l.calls++
	return &driver.ListMachinesResponse{MachineList: map[string]string{"any:///1": "m"}}, nil
}

// TestServe_RunsCommand: a program that is called with a command runs it, with the arguments after it, instead of the
// machine controller.
func TestServe_RunsCommand(t *testing.T) {
	class := filepath.Join(t.TempDir(), "class.yaml")
	text := "apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineClass\nmetadata: {name: c}\nprovider: Any\nproviderSpec: {}\n"
	if err := os.WriteFile(class, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before := os.Args
	defer func() { os.Args = before }()
	for name, tc := range map[string]struct {
		args    []string
		calls   int
		wantErr string
	}{
		"command":           {[]string{"instance", "list", "--class", class}, 1, ""},
		"former command":    {[]string{"machine", "list", "--class", class}, 1, ""},
		"flag before it":    {[]string{"--namespace=n", "instance", "list", "--class", class}, 1, ""},
		"flag of command":   {[]string{"conformance", "--no-such-flag"}, 0, "--no-such-flag"},
		"value, not a name": {[]string{"--namespace", "machine", "--address=nowhere"}, 0, "--address"},
		"flags after true":  {[]string{"--namespace", "machine", "--leader-elect", "true", "--port=0"}, 0, "flag --port=0 follows"},
	} {
		t.Run(name, func(t *testing.T) {
			os.Args = append([]string{"provider"}, tc.args...)
			s, flags, d := options.NewMCServer(), pflag.NewFlagSet("", pflag.ContinueOnError), &listing{}
			s.AddFlags(flags)
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := s.Serve(t.Context(), d)
			if d.calls != tc.calls || (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("%d calls, %v; want %d, %q", d.calls, err, tc.calls, tc.wantErr)
			}
		})
	}
}

// TestServe_UsesFieldsOfProgram: Serve uses fields that the program has set, and flags that another package added first.
// It returns an error for their invalid values.
func TestServe_UsesFieldsOfProgram(t *testing.T) {
	tests := map[string]func(s *options.MCServer, flags *pflag.FlagSet){
		"a field": func(s *options.MCServer, _ *pflag.FlagSet) { s.Address = "nowhere" },
		"a flag of another package": func(s *options.MCServer, flags *pflag.FlagSet) {
			flags.String("kube-api-qps", "20", "")
			s.AddFlags(flags)
			if err := flags.Parse([]string{"--kube-api-qps=-1"}); err != nil {
				t.Fatal(err)
			}
		},
		"an invalid value of one": func(s *options.MCServer, flags *pflag.FlagSet) {
			flags.String("port", "0", "")
			s.AddFlags(flags)
			if err := flags.Parse([]string{"--port=many"}); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, set := range tests {
		t.Run(name, func(t *testing.T) {
			s := options.NewMCServer()
			s.TargetKubeconfig, s.ControlKubeconfig = "none", "testdata/none"
			set(s, pflag.NewFlagSet("", pflag.ContinueOnError))
			if err := s.Serve(t.Context(), nil); err == nil {
				t.Error("Serve accepted the value")
			} else {
				t.Log(err)
			}
		})
	}
}
