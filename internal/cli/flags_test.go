package cli

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/internal/local/archives"
)

// mcmFlags are the flags of both MCM processes with their defaults. MCM spells klog's flags with underscores, and
// accepts dashes as well.
var mcmFlags = map[string]string{
	"address":                     "0.0.0.0",
	"cloud-provider":              "",
	"min-resync-period":           "12h0m0s",
	"profiling":                   "false",
	"contention-profiling":        "false",
	"target-kubeconfig":           "",
	"control-kubeconfig":          "",
	"namespace":                   "default",
	"kube-api-content-type":       "application/vnd.kubernetes.protobuf",
	"kube-api-qps":                "20",
	"kube-api-burst":              "30",
	"controller-start-interval":   "0s",
	"leader-elect":                "true",
	"leader-elect-lease-duration": "15s",
	"leader-elect-renew-deadline": "10s",
	"leader-elect-retry-period":   "2s",
	"leader-elect-resource-lock":  "leases",

	"v":                                "0",
	"vmodule":                          "",
	"logging-format":                   "text",
	"log-flush-frequency":              "5s",
	"log-json-info-buffer-size":        "0",
	"log-json-split-stream":            "false",
	"log-text-info-buffer-size":        "0",
	"log-text-split-stream":            "false",
	"add-dir-header":                   "false",
	"alsologtostderrthreshold":         "0",
	"alsologtostderr":                  "false",
	"legacy-stderr-threshold-behavior": "true",
	"log-backtrace-at":                 ":0",
	"log-dir":                          "",
	"log-file":                         "",
	"log-file-max-size":                "1800",
	"logtostderr":                      "true",
	"one-output":                       "false",
	"skip-headers":                     "false",
	"skip-log-headers":                 "false",
	"stderrthreshold":                  "2",
}

// mcmMachineFlags are the flags that only machine-controller has, or that have this default there.
var mcmMachineFlags = map[string]string{
	"port":                                         "10259",
	"concurrent-syncs":                             "50",
	"machine-creation-timeout":                     "20m0s",
	"machine-health-timeout":                       "10m0s",
	"machine-drain-timeout":                        "2h0m0s",
	"machine-inplace-update-timeout":               "20m0s",
	"machine-preserve-timeout":                     "96h0m0s",
	"machine-max-evict-retries":                    "360",
	"machine-pv-detach-timeout":                    "2m0s",
	"machine-pv-reattach-timeout":                  "1m30s",
	"machine-safety-apiserver-statuscheck-timeout": "30s",
	"machine-safety-apiserver-statuscheck-period":  "1m0s",
	"machine-safety-orphan-vms-period":             "15m0s",
	"node-conditions":                              "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable",
	"bootstrap-token-auth-extra-groups":            "",
	"resource-exhausted-retry":                     "10m0s",
}

// mcmSetFlags are the flags that only machine-controller-manager has, or that have this default there.
var mcmSetFlags = map[string]string{
	"port":                               "10258",
	"concurrent-syncs":                   "10",
	"safety-up":                          "2",
	"safety-down":                        "1",
	"machine-safety-overshooting-period": "1m0s",
	// proposed in https://github.com/gardener/machine-controller-manager/pull/1156
	"machine-replace-cycle-count-threshold":          "0",
	"machine-creation-timeout-growth-percent":        "0",
	"autoscaler-scaledown-annotation-during-rollout": "true",
}

// Millwright's own flags for Machines and MachineSets, with defaults that preserve MCM's behavior, and the flags
// of "manager" only.
var (
	ownMachineFlags = map[string]string{
		"driver-socket": "", "driver-listen": "", "driver-insecure-loopback": "false",
		"driver-tls-cert-file": "", "driver-tls-private-key-file": "", "driver-client-ca-file": "", "driver": "vm", "installation": "", "machine-safety-orphan-vms": "delete",
		"machine-max-health-replacements": "1", "machine-max-total-health-replacements": "", "drain-volume-pods": "serial", "driver-timeout": "10m0s", "fallback-after": "5s", "fallback-memory": "5m0s", "approve-node-certificates": "false",
		"webhook-port": "0", "webhook-cert-dir": "", "annotate-join-duration": "true",
		"sim-dir": "", "sim-heartbeat": "10s", "sim-seed": "0", "leader-elect-namespace": ""}
	ownSetFlags     = map[string]string{"enforce-min-ready-seconds": "false", "leader-elect-namespace": ""}
	ownManagerFlags = map[string]string{"apis": "[mcm]", "watch-filter": "",
		"leader-elect-resource-name": "millwright-cluster-api", "runtime-hook-client-ca-file": ""}
)

// otherDefaults are the defaults of "manager" that differ from MCM's. One process does the work of two, and its
// users need not know MCM.
var otherDefaults = map[string]string{"port": "10259", "concurrent-syncs": "50", "kube-api-qps": "100", "kube-api-burst": "200",
	"driver": "", "enforce-min-ready-seconds": "true", "annotate-join-duration": "false"}

// flagsOf returns the flags of a command with their defaults.
func flagsOf(t *testing.T, command ...string) map[string]string {
	t.Helper()
	cmd, _, err := newRoot("test", archives.Set{}).Find(command)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { found[flag.Name] = flag.DefValue })
	return found
}

// TestFlags_MatchMCM checks that each process of MCM accepts its flags with the same defaults.
func TestFlags_MatchMCM(t *testing.T) {
	cases := map[string][]map[string]string{
		"machine-controller":         {mcmFlags, mcmMachineFlags, ownMachineFlags},
		"machine-controller-manager": {mcmFlags, mcmSetFlags, ownSetFlags},
		"manager":                    {mcmFlags, mcmMachineFlags, mcmSetFlags, ownMachineFlags, ownSetFlags, ownManagerFlags, otherDefaults},
	}
	for command, sets := range cases {
		want := map[string]string{}
		for _, set := range sets {
			maps.Copy(want, set)
		}
		if diff := cmp.Diff(want, flagsOf(t, command)); diff != "" {
			t.Errorf("%s: flags and defaults (-want +got):\n%s", command, diff)
		}
	}
}

// TestFlags_AcceptMCMValues checks that values from MCM's manifests are accepted with the same meaning, and that
// invalid values are rejected with the name of the flag.
func TestFlags_AcceptMCMValues(t *testing.T) {
	cases := map[string]struct {
		command, given string
		flag, want     string // empty if the value is rejected
	}{
		"period without a unit":   {"machine-controller-manager", "--machine-safety-overshooting-period=1", "machine-safety-overshooting-period", "1s"},
		"period of the tests":     {"machine-controller-manager", "--machine-safety-overshooting-period=300ms", "machine-safety-overshooting-period", "300ms"},
		"timeout without a unit":  {"machine-controller", "--machine-drain-timeout=300", "machine-drain-timeout", "5m0s"},
		"preservation":            {"machine-controller", "--machine-preserve-timeout=72h", "machine-preserve-timeout", "72h0m0s"},
		"underscores":             {"machine-controller", "--log_file=/var/log/mc.log", "log-file", "/var/log/mc.log"},
		"dashes":                  {"machine-controller", "--log-file=/var/log/mc2.log", "log-file", "/var/log/mc2.log"},
		"a threshold by name":     {"machine-controller-manager", "--stderrthreshold=WARNING", "stderrthreshold", "WARNING"},
		"levels by file":          {"machine-controller-manager", "--vmodule=drain*=5", "vmodule", "drain*=5"},
		"a switch without value":  {"machine-controller", "--alsologtostderr", "alsologtostderr", "true"},
		"verbosity":               {"machine-controller", "--v=3", "v", "3"},
		"content type":            {"machine-controller", "--kube-api-content-type=application/json", "kube-api-content-type", "application/json"},
		"requests":                {"machine-controller", "--kube-api-qps=100", "kube-api-qps", "100"},
		"no target":               {"machine-controller-manager", "--target-kubeconfig=none", "target-kubeconfig", "none"},
		"no duration":             {"machine-controller", "--machine-health-timeout=5n", "machine-health-timeout", ""},
		"a threshold of its own":  {"machine-controller", "--alsologtostderrthreshold=error", "alsologtostderrthreshold", "error"},
		"a place":                 {"machine-controller-manager", "--log-backtrace-at=drain.go:17", "log-backtrace-at", "drain.go:17"},
		"a buffer":                {"machine-controller-manager", "--log-json-info-buffer-size=64Ki", "log-json-info-buffer-size", "64Ki"},
		"no buffer":               {"machine-controller-manager", "--log-text-info-buffer-size=much", "log-text-info-buffer-size", ""},
		"no switch":               {"machine-controller", "--logtostderr=perhaps", "logtostderr", ""},
		"flag of the other half":  {"machine-controller", "--safety-up=2", "safety-up", ""},
		"flag of the other half,": {"machine-controller-manager", "--machine-drain-timeout=2h", "machine-drain-timeout", ""},
	}
	for name, tc := range cases {
		cmd, _, err := newRoot("test", archives.Set{}).Find([]string{tc.command})
		if err != nil {
			t.Fatal(err)
		}
		switch err := cmd.ParseFlags([]string{tc.given}); {
		case (err == nil) != (tc.want != ""):
			t.Errorf("%s: %s returned %v", name, tc.given, err)
		case err != nil && !strings.Contains(err.Error(), "--"+tc.flag):
			t.Errorf("%s: %q does not name --%s", name, err, tc.flag)
		case err == nil && cmd.Flag(tc.flag).Value.String() != tc.want:
			t.Errorf("%s: %s has the value %q, want %q", name, tc.given, cmd.Flag(tc.flag).Value, tc.want)
		}
	}
}

// freeText are flags without invalid values: names of files, which are opened later, the name of an installation,
// which may be any text, and the name of a cloud, which MCM ignores as well.
var freeText = []string{
	"driver-socket", "target-kubeconfig", "control-kubeconfig", "sim-dir", "webhook-cert-dir", "log-dir", "log-file",
	"installation", "cloud-provider",
}

// TestFlags_RejectInvalidValues checks that every process rejects an invalid value of every flag, naming the flag,
// before anything starts.
func TestFlags_RejectInvalidValues(t *testing.T) {
	for _, command := range []string{"machine-controller", "machine-controller-manager", "manager"} {
		for name := range flagsOf(t, command) {
			if name == "help" || slices.Contains(freeText, name) {
				continue
			}
			var message strings.Builder
			// If the invalid value is accepted, the missing kubeconfig leads to a different exit status.
			args := []string{command, "--driver=sim", "--target-kubeconfig=/nowhere/at/all", "--" + name + "=no sense!"}
			if command == "machine-controller-manager" {
				args = slices.Delete(args, 1, 2) // it does not have the flag
			}
			status := Main(Program{Version: "test", Name: "millwright", Args: args, Stdout: &message, Stderr: &message})
			if status != 2 || !strings.Contains(message.String(), "--"+name) {
				t.Errorf("%s: --%s ends with %d: %s", command, name, status, &message)
			}
		}
	}
}

// upFlagsOfItsOwn are the flags of "up" that a manager does not have, or that have a different default.
var upFlagsOfItsOwn = map[string]string{
	"dir": ".millwright", "hosts": "2", "driver": "vm", "leader-elect": "false", "log-file": "",
	"api-port": "16443", "image-port": "16480", "vm-port": "0", "images": "", "image-servers": "", "binaries": "", "guest-ports": "[]",
	"vm-network": "10.77.0.0/16", "pod-network": "10.78.0.0/16", "connect-guests": "false", "download-url": archives.DefaultURL, "guest-outside": "true", "guest": "small", "ipv6": "false",
	"accelerator": "auto", "unsafe-no-fsync": "false",
	"vm-migration-downtime-limit": "300ms", "vm-migration-auto-converge": "true",
	"vm-migration-completion-timeout-per-gib": "2m30s", "vm-migration-completion-timeout-policy": "Pause",
	"vm-migration-bandwidth": "0", "vm-migration-timeout": "15m0s", "vm-migrations-per-host": "1", "vm-host-shutdown-grace-period": "0s",
}

// TestUp_FlagsMatchManager checks that "up" has the manager's tuning flags with the same defaults, and its own flags.
func TestUp_FlagsMatchManager(t *testing.T) {
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

// TestFlags_HaveOneLineHelp checks that every flag has a one-line usage without a trailing period.
func TestFlags_HaveOneLineHelp(t *testing.T) {
	for _, cmd := range newRoot("test", archives.Set{}).Commands() {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if flag.Usage == "" || strings.HasSuffix(flag.Usage, ".") || strings.Contains(flag.Usage, "\n") {
				t.Errorf("%s --%s: %q", cmd.Name(), flag.Name, flag.Usage)
			}
		})
	}
}
