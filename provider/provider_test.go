package provider_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/provider"
	"github.com/millwright-dev/millwright/test/support/repository"
)

func newFake(context.Context, provider.Environment) (driver.Driver, error) {
	return fake.New(fake.Config{}), nil
}

// addRegion adds a flag of a driver.
func addRegion(flags *pflag.FlagSet) { flags.String("example-region", "", "region of the VMs") }

// TestProgram_LinksOnlyMachineController: a machine controller contains neither the local mode nor our drivers.
func TestProgram_LinksOnlyMachineController(t *testing.T) {
	repository.DependOnAllFiles()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"/internal/local", "/internal/vm/hypervisor", "/drivers/", "/driver/sim", "/internal/cli/localdir", "/internal/cli/cluster"} {
		for dependency := range strings.FieldsSeq(string(out)) {
			if rest, ours := strings.CutPrefix(dependency, "github.com/millwright-dev/millwright"); ours && strings.HasPrefix(rest, part) {
				t.Errorf("links %s", dependency)
			}
		}
	}
}

// TestProgram_RejectsInvalidSettings: an invalid program returns an error before it does anything.
func TestProgram_RejectsInvalidSettings(t *testing.T) {
	cases := map[string]struct {
		program *provider.Provider
		args    []string
		want    string
	}{
		"invalid name":             {provider.New("my driver", newFake), nil, `invalid driver name "my driver"`},
		"no driver":                {provider.New("example", nil), nil, `driver "example" has no Open function`},
		"two of the same name":     {provider.New("example", newFake, provider.WithDriver(registry.Kind{Name: "Example", Open: newFake})), nil, `driver "Example"`},
		"a flag of the manager":    {provider.New("example", newFake, provider.WithFlags(func(f *pflag.FlagSet) { f.Int("port", 0, "") })), nil, "--port"},
		"a flag of conformance":    {provider.New("example", newFake, provider.WithFlags(func(f *pflag.FlagSet) { f.String("class", "", "") })), nil, "--class"},
		"unknown flag":             {provider.New("example", newFake), []string{"--nonsense"}, "--nonsense"},
		"unknown command":          {provider.New("example", newFake), []string{"mangaer"}, `unknown command "mangaer"`},
		"bad value":                {provider.New("example", newFake), []string{"--concurrent-syncs=0"}, "--concurrent-syncs"},
		"--driver with one driver": {provider.New("example", newFake), []string{"--driver=vm"}, "--driver"},
		"unknown driver":           {provider.New("example", newFake, provider.WithDriver(registry.Kind{Name: "other", Open: newFake})), []string{"--driver=third", "--target-kubeconfig", "KUBECONFIG"}, `unknown driver "third"; known drivers: example, other`},
		"named twice":              {provider.New("example", newFake, provider.WithDriver(registry.Kind{Name: "other", Open: newFake})), []string{"manager", "--driver=other,other", "--target-kubeconfig", "KUBECONFIG"}, `duplicate driver "other"`},
		"missing kubeconfig":       {provider.New("example", newFake), []string{"--target-kubeconfig=/nowhere/at/all"}, "--target-kubeconfig"},
		"own and manager's flags":  {provider.New("example", newFake, provider.WithFlags(addRegion)), []string{"manager", "--example-region=a", "--port=-1"}, "--port"},
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeKubeconfig(t, kubeconfig)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for i, arg := range tc.args {
				tc.args[i] = strings.ReplaceAll(arg, "KUBECONFIG", kubeconfig)
			}
			err := tc.program.Run(t.Context(), tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestProgram_CallsDriverWithoutCluster: the program of a driver also has the commands that need only the driver.
func TestProgram_CallsDriverWithoutCluster(t *testing.T) {
	dir := t.TempDir()
	class, secret := filepath.Join(dir, "class.yaml"), filepath.Join(dir, "secret.yaml")
	for path, text := range map[string]string{
		class:  "apiVersion: machine.sapcloud.io/v1alpha1\nkind: MachineClass\nmetadata: {name: c}\nproviderSpec: {}\n",
		secret: "apiVersion: v1\nkind: Secret\nmetadata: {name: c}\nstringData: {userData: x}\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"example", provider.AnyClass} {
		d := fake.New(fake.Config{})
		p := provider.New(name, func(context.Context, provider.Environment) (driver.Driver, error) { return d, nil })
		if err := p.Run(t.Context(), "instance", "create", "m", "--class", class, "--secret", secret); err != nil || len(d.VMs()) != 1 {
			t.Errorf("driver %q: %d VMs, %v", name, len(d.VMs()), err)
		}
		for _, command := range []string{"instance", "machine"} { // the former name
			if err := p.Run(t.Context(), command, "list", "--class", class); err != nil {
				t.Errorf("driver %q: %v", name, err)
			}
		}
		if err := p.Run(t.Context(), "instance", "delete", "m", "--class", class, "--secret", secret); err != nil || len(d.VMs()) != 0 {
			t.Errorf("driver %q: %d VMs, %v", name, len(d.VMs()), err)
		}
		if err := p.Run(t.Context(), "conformance", "--run=R01|R20", "--class", class, "--secret", secret); err != nil || len(d.Calls(fake.CreateMachine)) < 2 {
			t.Errorf("driver %q: %v", name, err)
		}
	}
}

// TestFlags_OfMCMAndDriver: a program with its own command line has MCM's flags and those of the driver.
func TestFlags_OfMCMAndDriver(t *testing.T) {
	p := provider.New(provider.AnyClass, newFake, provider.WithFlags(addRegion), provider.WithoutMetrics())
	if err := p.RunParsed(t.Context(), &bytes.Buffer{}); err == nil {
		t.Error("RunParsed succeeded without flags")
	}
	flags := pflag.NewFlagSet("program", pflag.ContinueOnError)
	if err := p.AddFlags(flags); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"port": "10259", "kube-api-qps": "20", "machine-creation-timeout": "20m0s", "example-region": ""} {
		if flag := flags.Lookup(name); flag == nil || flag.DefValue != want {
			t.Errorf("--%s: got %+v, want default %q", name, flag, want)
		}
	}
	if flags.Lookup("driver") != nil || flags.Lookup("apis") != nil {
		t.Error("program has flags of millwright")
	}
	if err := flags.Parse([]string{"--target-kubeconfig=/nowhere/at/all"}); err != nil {
		t.Fatal(err)
	}
	if err := p.RunParsed(t.Context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "--target-kubeconfig") {
		t.Errorf("got error %v", err)
	}
}
