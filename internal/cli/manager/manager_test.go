package manager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/drivers"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
)

// parse returns the flags of a manager parsed from arguments.
func parse(t *testing.T, arguments ...string) *Flags {
	t.Helper()
	flags := &Flags{Driver: DriverFlags{Kinds: drivers.Kinds()}}
	set := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	if err := flags.add(set, standard); err != nil {
		t.Fatal(err)
	}
	if err := set.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	return flags
}

// TestManager_ValidatesFlags checks that values that MCM rejects are rejected with the name of the flag, and that values that MCM
// accepts are accepted.
func TestManager_ValidatesFlags(t *testing.T) {
	cases := map[string]struct {
		args  []string
		flags []string // the flags that the error names; none if the value is accepted
	}{
		"defaults":                   {},
		"zero QPS":                   {args: []string{"--kube-api-qps=0"}, flags: []string{"--kube-api-qps"}},
		"QPS is not a number":        {args: []string{"--kube-api-qps=NaN"}, flags: []string{"--kube-api-qps"}},
		"infinite QPS":               {args: []string{"--kube-api-qps=Inf"}, flags: []string{"--kube-api-qps"}},
		"zero burst":                 {args: []string{"--kube-api-burst=0"}},
		"negative burst":             {args: []string{"--kube-api-burst=-1"}, flags: []string{"--kube-api-burst"}},
		"no syncs":                   {args: []string{"--concurrent-syncs=0"}, flags: []string{"--concurrent-syncs"}},
		"port zero serves nothing":   {args: []string{"--port=0"}},
		"port too high":              {args: []string{"--port=65536"}, flags: []string{"--port"}},
		"port negative":              {args: []string{"--port=-1"}, flags: []string{"--port"}},
		"a name as address":          {args: []string{"--address=localhost"}, flags: []string{"--address"}},
		"IPv6 address":               {args: []string{"--address=::1"}},
		"no namespace":               {args: []string{"--namespace="}, flags: []string{"--namespace"}},
		"nowhere":                    {args: []string{"--target-kubeconfig=none"}, flags: []string{"--control-kubeconfig"}},
		"only control":               {args: []string{"--target-kubeconfig=none", "--control-kubeconfig=inClusterConfig"}},
		"approval, no target":        {args: []string{"--approve-node-certificates", "--target-kubeconfig=none", "--control-kubeconfig=inClusterConfig"}, flags: []string{"--approve-node-certificates"}},
		"approval, no Machines":      {args: []string{"--approve-node-certificates", "--apis=capi"}, flags: []string{"--approve-node-certificates"}},
		"approval":                   {args: []string{"--approve-node-certificates"}},
		"negative resync":            {args: []string{"--min-resync-period=-1s"}, flags: []string{"--min-resync-period"}},
		"negative creation timeout":  {args: []string{"--machine-creation-timeout=-1s"}, flags: []string{"--machine-creation-timeout"}},
		"negative retry":             {args: []string{"--resource-exhausted-retry=-1s"}, flags: []string{"--resource-exhausted-retry"}},
		"no time for the driver":     {args: []string{"--driver-timeout=0"}, flags: []string{"--driver-timeout"}},
		"negative driver timeout":    {args: []string{"--driver-timeout=-1s"}, flags: []string{"--driver-timeout"}},
		"retry by default":           {args: []string{"--resource-exhausted-retry=0"}},
		"lease below deadline":       {args: []string{"--leader-elect-lease-duration=5s"}, flags: []string{"--leader-elect"}},
		"deadline near retry period": {args: []string{"--leader-elect-renew-deadline=2300ms"}, flags: []string{"--leader-elect"}},
		"lease of no length":         {args: []string{"--leader-elect-lease-duration=900ms", "--leader-elect-renew-deadline=500ms", "--leader-elect-retry-period=100ms"}, flags: []string{"--leader-elect-lease-duration"}},
		"no retry period":            {args: []string{"--leader-elect-retry-period=0"}, flags: []string{"--leader-elect"}},
		"no election, no rules":      {args: []string{"--leader-elect=false", "--leader-elect-retry-period=0"}},
		"no overshooting period":     {args: []string{"--machine-safety-overshooting-period=0"}},
		"negative overshooting":      {args: []string{"--machine-safety-overshooting-period=-1s"}, flags: []string{"--machine-safety-overshooting-period"}},
		"odd conditions":             {args: []string{"--node-conditions=KernelDeadlock,,Disk Pressure"}, flags: []string{"--node-conditions", "--node-conditions"}},
		"spaces around conditions":   {args: []string{"--node-conditions=KernelDeadlock, DiskPressure ,ReadonlyFilesystem"}},
		"no conditions":              {args: []string{"--node-conditions="}},
		"groups":                     {args: []string{"--bootstrap-token-auth-extra-groups=system:bootstrappers:kubeadm:default-node-token,system:bootstrappers:a"}},
		"other groups":               {args: []string{"--bootstrap-token-auth-extra-groups=system:masters"}, flags: []string{"--bootstrap-token-auth-extra-groups"}},
		"profiles":                   {args: []string{"--profiling", "--contention-profiling"}},
		"contention alone":           {args: []string{"--contention-profiling"}, flags: []string{"--contention-profiling"}},
		"all at once":                {args: []string{"--kube-api-qps=-1", "--port=-1", "--concurrent-syncs=-1", "--min-resync-period=-1s"}, flags: []string{"--kube-api-qps", "--port", "--concurrent-syncs", "--min-resync-period"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := parse(t, tc.args...).validate()
			if (err == nil) != (len(tc.flags) == 0) {
				t.Fatalf("validate() = %v", err)
			}
			for _, flag := range tc.flags {
				if !strings.Contains(err.Error(), flag+":") && !strings.Contains(err.Error(), flag+"-*:") {
					t.Errorf("%q does not name %s", err, flag)
				}
			}
			if lines := strings.Count(strings.Join(tc.flags, "\n"), "\n"); err != nil && strings.Count(err.Error(), "\n") != lines {
				t.Errorf("%q has more lines than flags %v", err, tc.flags)
			}
		})
	}
}

// TestManager_Kubeconfigs checks which kubeconfig is used for which cluster. The rules are MCM's.
func TestManager_Kubeconfigs(t *testing.T) {
	control, target := env.Kubeconfig(t, "https://control"), env.Kubeconfig(t, "https://target")
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // outside of any cluster
	cases := map[string]struct {
		control, target         string
		wantControl, wantTarget string
		wantErr                 error
		errFlag                 string
	}{
		"both":                  {control: control, target: target, wantControl: "https://control", wantTarget: "https://target"},
		"target only":           {target: target, wantControl: "https://target", wantTarget: "https://target"},
		"control only":          {control: control, target: "none", wantControl: "https://control"},
		"neither":               {wantErr: rest.ErrNotInCluster, errFlag: "--target-kubeconfig"},
		"control in cluster":    {control: "inClusterConfig", target: target, wantErr: rest.ErrNotInCluster, errFlag: "--control-kubeconfig"},
		"missing file":          {control: control, target: "/nowhere/at/all", wantErr: os.ErrNotExist, errFlag: "--target-kubeconfig"},
		"missing control":       {control: "/nowhere/at/all", target: target, wantErr: os.ErrNotExist, errFlag: "--control-kubeconfig"},
		"none is not a control": {control: "none", target: target, wantErr: os.ErrNotExist, errFlag: "--control-kubeconfig"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			flags := parse(t, "--control-kubeconfig", tc.control, "--target-kubeconfig", tc.target, "--kube-api-qps=7", "--kube-api-burst=9")
			err := flags.connect()
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("connect() = %v, want %v", err, tc.wantErr)
			}
			if err != nil {
				if !strings.HasPrefix(err.Error(), tc.errFlag+": ") {
					t.Errorf("%q does not begin with %s", err, tc.errFlag)
				}
				return
			}
			if got := hostOf(flags.Config.Control); got != tc.wantControl {
				t.Errorf("control cluster %q, want %q", got, tc.wantControl)
			}
			if got := hostOf(flags.Config.Target); got != tc.wantTarget {
				t.Errorf("target cluster %q, want %q", got, tc.wantTarget)
			}
			if c := flags.Config.Control; c.QPS != 7 || c.Burst != 9 || c.UserAgent != Agent {
				t.Errorf("QPS %v, burst %d, user agent %q", c.QPS, c.Burst, c.UserAgent)
			}
		})
	}
}

func hostOf(config *rest.Config) string {
	if config == nil {
		return ""
	}
	return config.Host
}

// TestManager_ExplainsCommonErrors checks the advice for the most common errors.
func TestManager_ExplainsCommonErrors(t *testing.T) {
	config := manager.Config{Settings: manager.Settings{Pages: manager.Pages{Address: "127.0.0.1", Port: 10259}}}
	taken := fmt.Errorf("running: %w", os.NewSyscallError("bind", syscall.EADDRINUSE))
	if err := explain(taken, config); err == nil || !strings.Contains(err.Error(), "10259") || !strings.Contains(err.Error(), "--port") {
		t.Errorf("explain(port in use) = %v", err)
	}
	other := errors.New("other")
	if err := explain(other, config); !errors.Is(err, other) {
		t.Errorf("explain(other) = %v", err)
	}
	if err := explain(nil, config); err != nil {
		t.Errorf("explain(nil) = %v", err)
	}
}

// TestManager_RequiresKnownDriver checks that --driver is required and must name a known driver.
func TestManager_RequiresKnownDriver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		args  []string
		ok    bool
		usage bool
	}{
		"none":              {nil, false, true},
		"unknown":           {[]string{"--driver=clay"}, false, true},
		"sim":               {[]string{"--driver=sim"}, true, false},
		"sim in directory":  {[]string{"--driver=sim", "--sim-dir", filepath.Join(t.TempDir(), "new")}, true, false},
		"invalid directory": {[]string{"--driver=sim", "--sim-dir", filepath.Join(file, "below")}, false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			flags := parse(t, tc.args...)
			err := flags.Driver.open(t.Context(), &flags.Config)
			var usage *args.UsageError
			if (err == nil) != tc.ok || errors.As(err, &usage) != tc.usage {
				t.Errorf("open() = %v", err)
			}
			if (flags.Config.Drivers != nil) != tc.ok {
				t.Errorf("driver %v", flags.Config.Drivers)
			}
		})
	}
}

// TestManager_ZeroFlagIsNotDefault checks that a flag of zero means no time and no retry, as in MCM and in the spec of a Machine.
// The only exception is --resource-exhausted-retry, for which zero means the default.
func TestManager_ZeroFlagIsNotDefault(t *testing.T) {
	zero := []string{
		"--machine-creation-timeout=0", "--machine-health-timeout=0", "--machine-drain-timeout=0", "--machine-preserve-timeout=0",
		"--machine-inplace-update-timeout=0", "--machine-max-evict-retries=0", "--machine-pv-detach-timeout=0", "--machine-pv-reattach-timeout=0",
	}
	for name, tc := range map[string]struct {
		given []string
		none  bool
	}{"defaults": {nil, false}, "zero": {zero, true}} {
		f := parse(t, append(tc.given, "--driver=sim")...)
		if err := f.Complete(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.Driver.close(f.Config.Log)
		c := f.Config
		for what, limit := range map[string]time.Duration{ // in the settings, negative means no time, and 0 the default
			"creation": c.CreationTimeout, "preservation": c.Timeouts.Preserve, "update": c.Timeouts.InPlaceUpdate,
			"health": c.Health.Timeout, "drain": c.Drain.Timeout, "evictions": time.Duration(c.Drain.MaxEvictRetries),
			"detachment": c.Drain.DetachTimeout, "attachment": c.Drain.ReattachTimeout,
		} {
			if limit == 0 || limit < 0 != tc.none {
				t.Errorf("%s: %s has %v", name, what, limit)
			}
		}
	}
}
