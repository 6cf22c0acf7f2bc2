package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/millwright-dev/millwright/internal/manager"
)

// TestMainAnswers: what the program prints where, and its exit status, as far as it ends
// by itself.
func TestMainAnswers(t *testing.T) {
	cases := map[string]struct {
		args   []string
		status int
		stdout []string
		stderr []string
	}{
		"version":               {[]string{"version"}, 0, []string{"millwright v1.2.3 (go"}, nil},
		"help":                  {[]string{"help"}, 0, []string{"manager", "up", "version"}, nil},
		"--help":                {[]string{"--help"}, 0, []string{"manager", "up", "version"}, nil},
		"nothing":               {nil, 0, []string{"manager", "up", "version"}, nil},
		"help on a command":     {[]string{"help", "manager"}, 0, []string{"--control-kubeconfig", "--driver", "Example"}, nil},
		"--help of a command":   {[]string{"up", "--help"}, 0, []string{"--dir", "control plane"}, nil},
		"unknown command":       {[]string{"fly"}, 2, nil, []string{`there is no command "fly"`, `Run "millwright --help" for usage.`}},
		"mistyped command":      {[]string{"managr"}, 2, nil, []string{"did you mean manager?"}},
		"unknown flag":          {[]string{"--colour"}, 2, nil, []string{"--colour", `Run "millwright --help" for usage.`}},
		"unknown flag of one":   {[]string{"manager", "--colour"}, 2, nil, []string{"--colour", `Run "millwright manager --help" for usage.`}},
		"flag without sense":    {[]string{"manager", "--port", "many"}, 2, nil, []string{`millwright: --port: "many" is not a whole number` + "\n"}},
		"argument too many":     {[]string{"manager", "now"}, 2, nil, []string{`"now"`, `Run "millwright manager --help" for usage.`}},
		"version with argument": {[]string{"version", "now"}, 2, nil, []string{`"now"`}},
		"several mistakes":      {[]string{"manager", "--driver=sim", "--port=-1", "--concurrent-syncs=0"}, 2, nil, []string{"--port: -1 is not between 0 and 65535; --concurrent-syncs: must be above 0\n"}},
		"bad verbosity":         {[]string{"manager", "--v=11"}, 2, nil, []string{"--v: 11"}},
		"bad format":            {[]string{"manager", "--logging-format=xml"}, 2, nil, []string{`--logging-format: "xml"`}},
		"kubeconfig missing":    {[]string{"manager", "--driver=sim", "--target-kubeconfig=/nowhere/at/all"}, 1, nil, []string{"--target-kubeconfig: ", "/nowhere/at/all"}},
		"up, no sense":          {[]string{"up", "--concurrent-syncs=0"}, 2, nil, []string{"--concurrent-syncs", `Run "millwright up --help" for usage.`}},
		"up, bad ports":         {[]string{"up", "--api-port=70000", "--hosts=-1"}, 2, nil, []string{"--api-port: 70000", "--hosts: -1"}},
		"up, bad network":       {[]string{"up", "--vm-network=10.0.0.1/8"}, 2, nil, []string{"--vm-network: 10.0.0.1/8"}},
		"up, bad accelerator":   {[]string{"up", "--accelerator=steam", "--binaries=/nowhere/at/all", "--dir", filepath.Join(t.TempDir(), "up")}, 2, nil, []string{`--accelerator: "steam" is none of auto, kvm and tcg`}},
		"up, VMs without hosts": {[]string{"up", "--hosts=0", "--binaries=/nowhere/at/all", "--dir", filepath.Join(t.TempDir(), "up")}, 2, nil, []string{"--hosts: the driver vm needs at least 1"}},
		"help on nothing":       {[]string{"help", "bogus"}, 2, nil, []string{`there is no command "bogus"`, `Run "millwright --help" for usage.`}},
		"help on no vm command": {[]string{"help", "vm", "lst"}, 2, nil, []string{"did you mean list?", `Run "millwright vm --help" for usage.`}},
		"nothing's --help":      {[]string{"bogus", "--help"}, 2, nil, []string{`there is no command "bogus"`, `Run "millwright --help" for usage.`}},
		"no vm command's -h":    {[]string{"vm", "lst", "-h"}, 2, nil, []string{"did you mean list?"}},
		"help on help":          {[]string{"help", "help"}, 0, []string{"Help on a command"}, nil},
		"a number too large":    {[]string{"up", "--hosts=99999999999999999999"}, 2, nil, []string{"millwright: --hosts: 99999999999999999999 is out of range\n"}},
		"no duration":           {[]string{"demo", "--timeout=soon"}, 2, nil, []string{`millwright: --timeout: "soon" is not a duration, such as 90s or 5m` + "\n"}},
		"up, bad driver":        {[]string{"up", "--driver=clay"}, 2, nil, []string{`no driver "clay"`}},
		"vm":                    {[]string{"vm"}, 0, []string{"list", "console", "reset"}, nil},
		"vm, mistyped":          {[]string{"vm", "lst"}, 2, nil, []string{"did you mean list?", `Run "millwright vm --help" for usage.`}},
		"vm console, no name":   {[]string{"vm", "console"}, 2, nil, []string{"name of one virtual machine", `Run "millwright vm console --help" for usage.`}},
		"vm list, no cluster":   {[]string{"vm", "list", "--dir", t.TempDir()}, 1, nil, []string{"millwright up"}},
		"status, nothing":       {[]string{"status", "--dir", t.TempDir()}, 0, []string{"Nothing runs"}, nil},
		"status, no folder":     {[]string{"status", "--dir", "/nowhere/at/all"}, 0, []string{"Nothing runs"}, nil},
		"down, nothing":         {[]string{"down", "--dir", t.TempDir()}, 0, []string{"Nothing runs"}, nil},
		"hostrunner, nothing":   {[]string{"hostrunner"}, 2, nil, []string{"--name"}},
		"up, no programs":       {[]string{"up", "--binaries=/nowhere/at/all", "--dir", filepath.Join(t.TempDir(), "up")}, 1, nil, []string{"/nowhere/at/all"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			status := Main(Program{Version: "v1.2.3", Args: tc.args, Stdout: &stdout, Stderr: &stderr})
			if status != tc.status {
				t.Errorf("exit status %d, want %d", status, tc.status)
			}
			for _, words := range tc.stdout {
				if !strings.Contains(stdout.String(), words) {
					t.Errorf("stdout lacks %q:\n%s", words, &stdout)
				}
			}
			for _, words := range tc.stderr {
				if !strings.Contains(stderr.String(), words) {
					t.Errorf("stderr lacks %q:\n%s", words, &stderr)
				}
			}
			if tc.status == 0 && stderr.Len() != 0 {
				t.Errorf("stderr of a success:\n%s", &stderr)
			}
			if tc.status != 0 && !strings.HasPrefix(stderr.String(), "millwright: ") {
				t.Errorf("stderr does not begin with who says it:\n%s", &stderr)
			}
		})
	}
}

// kubeconfig writes one that leads to a host.
func kubeconfig(t *testing.T, host string) string {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: host}
	file.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	file.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWhichClusters: which kubeconfig is which cluster's, as in MCM.
func TestWhichClusters(t *testing.T) {
	control, target := kubeconfig(t, "https://control"), kubeconfig(t, "https://target")
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // outside of any cluster
	cases := map[string]struct {
		control, target         string
		wantControl, wantTarget string
		wantErr                 error
		blames                  string
	}{
		"both":                  {control: control, target: target, wantControl: "https://control", wantTarget: "https://target"},
		"target only":           {target: target, wantControl: "https://target", wantTarget: "https://target"},
		"control only":          {control: control, target: "none", wantControl: "https://control"},
		"neither":               {wantErr: rest.ErrNotInCluster, blames: "--target-kubeconfig"},
		"control in cluster":    {control: "inClusterConfig", target: target, wantErr: rest.ErrNotInCluster, blames: "--control-kubeconfig"},
		"missing file":          {control: control, target: "/nowhere/at/all", wantErr: os.ErrNotExist, blames: "--target-kubeconfig"},
		"missing control":       {control: "/nowhere/at/all", target: target, wantErr: os.ErrNotExist, blames: "--control-kubeconfig"},
		"none is not a control": {control: "none", target: target, wantErr: os.ErrNotExist, blames: "--control-kubeconfig"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			flags := parse(t, "--control-kubeconfig", tc.control, "--target-kubeconfig", tc.target, "--kube-api-qps=7", "--kube-api-burst=9")
			err := flags.connect()
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("answers %v, want %v", err, tc.wantErr)
			}
			if err != nil {
				if !strings.HasPrefix(err.Error(), tc.blames+": ") {
					t.Errorf("%q does not blame %s", err, tc.blames)
				}
				return
			}
			if got := hostOf(flags.config.Control); got != tc.wantControl {
				t.Errorf("control cluster %q, want %q", got, tc.wantControl)
			}
			if got := hostOf(flags.config.Target); got != tc.wantTarget {
				t.Errorf("target cluster %q, want %q", got, tc.wantTarget)
			}
			if c := flags.config.Control; c.QPS != 7 || c.Burst != 9 || c.UserAgent != managerAgent {
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

// TestExplanations: the errors that operators run into most.
func TestExplanations(t *testing.T) {
	config := manager.Config{Address: "127.0.0.1", Port: 10259}
	taken := fmt.Errorf("running: %w", os.NewSyscallError("bind", syscall.EADDRINUSE))
	if err := explain(taken, config); err == nil || !strings.Contains(err.Error(), "10259") || !strings.Contains(err.Error(), "--port") {
		t.Errorf("a taken port is explained by %v", err)
	}
	if err := explain(fmt.Errorf("running: %w", context.Canceled), config); err != nil {
		t.Errorf("the user's own Ctrl-C is an error: %v", err)
	}
	other := errors.New("other")
	if err := explain(other, config); !errors.Is(err, other) {
		t.Errorf("another error became %v", err)
	}
	if err := explain(nil, config); err != nil {
		t.Errorf("success became %v", err)
	}
}

// TestDrivers: a driver must be named, and known.
func TestDrivers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		args  []string
		ok    bool
		usage bool
	}{
		"none":           {nil, false, true},
		"unknown":        {[]string{"--driver=clay"}, false, true},
		"sim":            {[]string{"--driver=sim"}, true, false},
		"sim in folder":  {[]string{"--driver=sim", "--sim-dir", filepath.Join(t.TempDir(), "new")}, true, false},
		"no such folder": {[]string{"--driver=sim", "--sim-dir", filepath.Join(file, "below")}, false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			flags := parse(t, tc.args...)
			err := flags.driver.open(&flags.config)
			var usage *usageError
			if (err == nil) != tc.ok || errors.As(err, &usage) != tc.usage {
				t.Errorf("answers %v", err)
			}
			if (flags.config.Driver != nil) != tc.ok {
				t.Errorf("driver %v", flags.config.Driver)
			}
		})
	}
}

// TestLogLines: one format for all that logs, by the flag.
func TestLogLines(t *testing.T) {
	for format, check := range map[string]func(line string) bool{
		"json": func(line string) bool { return json.Valid([]byte(line)) },
		"text": func(line string) bool { return strings.Contains(line, "level=") && strings.Contains(line, "msg=") },
	} {
		t.Run(format, func(t *testing.T) {
			var out bytes.Buffer
			log, err := (&logging{format: format, verbosity: 1}).setUp(&out)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(klog.ClearLogger)
			log.Info("zero")
			log.V(1).Info("one")
			log.V(2).Info("two")
			log.Error(errors.New("cause"), "failed")
			klog.InfoS("from a library")
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			var said []string
			for _, line := range lines {
				if !check(line) {
					t.Errorf("line %q", line)
				}
				for _, message := range []string{"zero", "one", "two", "failed", "from a library"} {
					if strings.Contains(line, message) {
						said = append(said, message)
					}
				}
			}
			if diff := cmp.Diff([]string{"zero", "one", "failed", "from a library"}, said); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEndIsQuiet: that leadership is lost is no error at an end that was asked for, and
// only then.
func TestEndIsQuiet(t *testing.T) {
	var out bytes.Buffer
	log, err := (&logging{format: "text"}).setUp(&out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(klog.ClearLogger)
	const stopping = "error received after stop sequence was engaged"
	lost := errors.New("leader election lost")
	log.Error(lost, stopping)
	log.WithName("named").WithValues("a", "b").Error(lost, stopping)
	if out.Len() != 0 {
		t.Errorf("said at an orderly end:\n%s", &out)
	}
	log.Error(lost, "something else")
	log.Error(errors.New("disk full"), stopping)
	log.Error(nil, stopping)
	if got := strings.Count(out.String(), "\n"); got != 3 {
		t.Errorf("%d of 3 real errors are said:\n%s", got, &out)
	}
}
