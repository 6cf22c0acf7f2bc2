package cli

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// mcmFlags are the flags of MCM's machine-controller and their defaults.
var mcmFlags = map[string]string{
	"port":                           "10259",
	"address":                        "0.0.0.0",
	"cloud-provider":                 "",
	"concurrent-syncs":               "50",
	"min-resync-period":              "12h0m0s",
	"profiling":                      "false",
	"contention-profiling":           "false",
	"target-kubeconfig":              "",
	"control-kubeconfig":             "",
	"namespace":                      "default",
	"kube-api-content-type":          "application/vnd.kubernetes.protobuf",
	"kube-api-qps":                   "20",
	"kube-api-burst":                 "30",
	"controller-start-interval":      "0s",
	"leader-elect":                   "true",
	"leader-elect-lease-duration":    "15s",
	"leader-elect-renew-deadline":    "10s",
	"leader-elect-retry-period":      "2s",
	"leader-elect-resource-lock":     "leases",
	"v":                              "0",
	"logging-format":                 "text",
	"machine-creation-timeout":       "20m0s",
	"machine-health-timeout":         "10m0s",
	"machine-drain-timeout":          "2h0m0s",
	"machine-inplace-update-timeout": "20m0s",
	"machine-preserve-timeout":       "96h0m0s",
	"machine-max-evict-retries":      "360",
	"machine-pv-detach-timeout":      "2m0s",
	"machine-pv-reattach-timeout":    "1m30s",
	"machine-safety-apiserver-statuscheck-timeout": "30s",
	"machine-safety-apiserver-statuscheck-period":  "1m0s",
	"machine-safety-orphan-vms-period":             "15m0s",
	"node-conditions":                              "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable",
	"bootstrap-token-auth-extra-groups":            "",
	"resource-exhausted-retry":                     "10m0s",
}

// mcmSetFlags are those that only the other process of MCM has, which looks after sets and
// deployments, and their defaults.
var mcmSetFlags = map[string]string{
	"safety-up":                          "2",
	"safety-down":                        "1",
	"machine-safety-overshooting-period": "1m0s",
	"autoscaler-scaledown-annotation-during-rollout": "true",
}

// otherDefaults are those on purpose: a request limit that one process needs which does
// the work of two, and the one with which Gardener runs MCM.
var otherDefaults = map[string]string{"kube-api-qps": "100", "kube-api-burst": "200"}

// notYet are flags of MCM's with nothing behind them so far. They are unknown flags until
// there is.
var notYet = []string{
	"cloud-provider", "kube-api-content-type", "controller-start-interval",
	"leader-elect-resource-lock",
}

// ownFlags are those that MCM has not.
var ownFlags = map[string]string{"driver": "", "installation": "", "machine-safety-orphan-vms": "delete",
	"machine-max-health-replacements": "1", "drain-volume-pods": "serial", "approve-node-certificates": "false",
	"apis": "[mcm]", "watch-filter": "", "webhook-port": "0", "webhook-cert-dir": "", "leader-elect-namespace": "", "leader-elect-resource-name": "millwright-cluster-api",
	"enforce-min-ready-seconds": "true", "sim-dir": "", "sim-heartbeat": "10s"}

// flagsOf are the flags of a command with their defaults.
func flagsOf(t *testing.T, command ...string) map[string]string {
	t.Helper()
	cmd, _, err := newRoot("test").Find(command)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { found[flag.Name] = flag.DefValue })
	return found
}

// TestFlagsAreMCMs: a manager that is started as MCM was understands it, and does the
// same.
func TestFlagsAreMCMs(t *testing.T) {
	want := map[string]string{}
	for _, set := range []map[string]string{mcmFlags, mcmSetFlags, otherDefaults, ownFlags} {
		for name, value := range set {
			want[name] = value
		}
	}
	for _, name := range notYet {
		if _, ok := want[name]; !ok {
			t.Errorf("--%s is no flag of MCM", name)
		}
		delete(want, name)
	}
	if diff := cmp.Diff(want, flagsOf(t, "manager")); diff != "" {
		t.Errorf("flags and defaults (-want +got):\n%s", diff)
	}
}

// upFlagsOfItsOwn are those of "up" that a manager has not, or with another default.
var upFlagsOfItsOwn = map[string]string{
	"dir": ".millwright", "hosts": "2", "driver": "vm", "leader-elect": "false", "log-file": "",
	"api-port": "16443", "image-port": "16480", "vm-port": "0", "images": "", "image-servers": "", "binaries": "", "guest-ports": "[]",
	"vm-network": "10.77.0.0/16", "accelerator": "auto", "unsafe-no-fsync": "false",
}

// TestFlagsOfUp: "up" has those that tune a manager, with the same defaults, and its own.
func TestFlagsOfUp(t *testing.T) {
	manager, want := flagsOf(t, "manager"), maps.Clone(upFlagsOfItsOwn)
	up := flagsOf(t, "up")
	for name := range up {
		if value, shared := manager[name]; shared && want[name] == "" {
			want[name] = value
		}
	}
	if diff := cmp.Diff(want, up); diff != "" {
		t.Errorf("flags and defaults (-want +got):\n%s", diff)
	}
	for _, name := range []string{"concurrent-syncs", "machine-creation-timeout", "node-conditions", "v"} {
		if _, there := up[name]; !there {
			t.Errorf("--%s is missing", name)
		}
	}
}

// TestEveryFlagIsExplained: in one line, and without a full stop, as pflag shows it.
func TestEveryFlagIsExplained(t *testing.T) {
	for _, cmd := range newRoot("test").Commands() {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Usage == "" || strings.HasSuffix(flag.Usage, ".") || strings.Contains(flag.Usage, "\n") {
				t.Errorf("%s --%s: %q", cmd.Name(), flag.Name, flag.Usage)
			}
		})
	}
}
