package manager

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/manager"
)

// newFleetFlags returns the parsed flags of a fleet without flags of drivers.
func newFleetFlags(t *testing.T, arguments ...string) *fleetFlags {
	t.Helper()
	f := &fleetFlags{kinds: func() registry.Kinds { return nil }}
	flags := pflag.NewFlagSet("fleet", pflag.ContinueOnError)
	if err := f.add(flags); err != nil {
		t.Fatal(err)
	}
	if err := flags.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFleet_NamespaceSetsFlags checks that the flags of the process are the defaults of all namespaces, and that the annotations
// of one namespace do not affect another.
func TestFleet_NamespaceSetsFlags(t *testing.T) {
	f := newFleetFlags(t, "--machine-drain-timeout=10m", "--safety-up=7")
	one, err := f.configure("one", map[string]string{"machine-drain-timeout": "30", "kube-api-qps": "5", "installation": "i", "machine-pv-detach-timeout": "0s"})
	if err != nil {
		t.Fatal(err)
	}
	if one.Drain.Timeout != 30*time.Second || one.QPS != 5 || one.Overshoot.Up != 7 || one.Drain.DetachTimeout != -1 || len(one.NodeConditions) == 0 {
		t.Errorf("settings %+v", one)
	}
	two, err := f.configure("two", nil)
	if err != nil {
		t.Fatal(err)
	}
	if two.Drain.Timeout != 10*time.Minute || two.QPS != standard.qps || two.Overshoot.Up != 7 {
		t.Errorf("settings %+v", two)
	}
}

func TestFleet_RejectsWrongAnnotations(t *testing.T) {
	f := newFleetFlags(t)
	if _, err := f.configure("one", map[string]string{"concurrent-syncs": "0"}); err == nil {
		t.Error("no workers are accepted")
	}
	for name, value := range map[string]string{
		"machine-drain-timeout":       "soon",
		"machine-health-timeout":      "-1s",
		"kube-api-qps":                "0",
		"concurrent-syncs":            "1000000000",
		"leader-elect":                "false",
		"leader-elect-lease-duration": "1h",
		"min-resync-period":           "1h",
		"driver":                      "sim",
		"sim-dir":                     "/",
		"unknown":                     "x",
		"target-uid":                  "x",
	} {
		if _, err := f.configure("one", map[string]string{name: value}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}

func TestFleet_Validate(t *testing.T) {
	for wrong, arguments := range map[string][]string{
		"--leader-elect: must be true":    {"--leader-elect=false"},
		"--namespace-selector: must":      {"--namespace-selector="},
		"--namespace-selector: found":     {"--namespace-selector=a=b=c"},
		"--target-secret-selector: req":   {"--target-secret-selector="},
		"--target-secret-name: cannot be": {"--target-secret-name=x", "--target-secret-selector=y"},
		"--target-secret-name: \"A\"":     {"--target-secret-name=A"},
		"--namespace: \"A\"":              {"--namespace=A"},
		"--driver: required":              nil,
	} {
		f := newFleetFlags(t, arguments...)
		if err := f.validate(); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%v: %v, want %s", arguments, err, wrong)
		}
	}
}

// TestFleet_DriversCannotUseItsPermissions checks that the driver vm has no access to the seed.
func TestFleet_DriversCannotUseItsPermissions(t *testing.T) {
	config := &manager.Config{Control: &rest.Config{}, Target: &rest.Config{}}
	if (&DriverFlags{}).environment(config).Control == nil {
		t.Error("drivers of a single manager have no access to the control cluster")
	}
	config.Seed = &manager.Seed{}
	if env := (&DriverFlags{}).environment(config); env.Control != nil || env.Target == nil {
		t.Errorf("environment in a fleet: %+v", env)
	}
}
