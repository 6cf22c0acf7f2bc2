package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/drivers"
)

const (
	classFile = `apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: pool, namespace: machines}
provider: sim
providerSpec: {pool: a, tags: {kubernetes.io/cluster/shop: "1"}}
`
	secretFile = "apiVersion: v1\nkind: Secret\nmetadata: {name: pool}\nstringData: {userData: '#!/bin/sh'}\n"
)

// written returns a directory with files.
func written(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// run runs the command in the directory.
func run(t *testing.T, dir string, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	t.Chdir(dir)
	var out, problems bytes.Buffer
	simulated := &drivers.SimOptions{}
	cmd, err := New(Program{Kinds: drivers.With(simulated), Prepare: simulated.Temporary})
	if err != nil {
		t.Fatal(err)
	}
	cmd.SetArgs(arguments)
	cmd.SetOut(&out)
	cmd.SetErr(&problems)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return out.String(), problems.String(), err
}

func TestConformance_SimulatedDriver(t *testing.T) {
	dir := written(t, map[string]string{
		"class.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: machines}\n---\n" + classFile, "secret.yaml": secretFile,
		"changed.yaml": strings.Replace(classFile, "pool: a", "pool: b", 1),
	})
	stdout, stderr, err := run(t, dir, "--driver=sim", "--class=class.yaml", "--secret=secret.yaml", "--changed-class=changed.yaml", "--output=json")
	if err != nil {
		t.Fatal(err, stderr)
	}
	var report conformance.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if len(report.Results) != len(conformance.Rules()) || report.Count(conformance.Passed) < 60 || !report.Conforms() {
		t.Errorf("report: %+v", report)
	}
	if !strings.Contains(stderr, "passed    R24 ") {
		t.Errorf("progress on standard error: %s", stderr)
	}
}

func TestConformance_Timeout(t *testing.T) {
	dir := written(t, map[string]string{"class.yaml": classFile, "secret.yaml": secretFile})
	stdout, _, err := run(t, dir, "--driver=sim", "--class=class.yaml", "--secret=secret.yaml", "--cost-limit=2", "--run=R01|R02|R22", "--skip=R02")
	if err != nil || !strings.Contains(stdout, "reached the limit of 2 machines") || !strings.Contains(stdout, "2 rules: 1 passed, 0 failed, 1 skipped") {
		t.Errorf("%v: %s", err, stdout)
	}
}

// TestConformance_Resume checks that a second run checks only the rules without a result.
func TestConformance_Resume(t *testing.T) {
	dir := written(t, map[string]string{"class.yaml": classFile, "secret.yaml": secretFile})
	common := []string{"--driver=sim", "--class=class.yaml", "--secret=secret.yaml", "--resume=results.json", "--rule-timeout=1h", "--run=R01|R02|R22"}
	for i, want := range []string{"3 rules: 2 passed, 0 failed, 1 skipped, 0 without a check; 2 machines created", "3 rules: 3 passed, 0 failed, 0 skipped"} {
		stdout, _, err := run(t, dir, append(common, []string{"--cost-limit=2", "--cost-limit=10"}[i])...)
		if err != nil || !strings.Contains(stdout, want) || strings.Contains(stdout, "passed    R01") != (i == 0) {
			t.Errorf("run %d: %v: %s", i+1, err, stdout)
		}
	}
}

func TestConformance_RejectsInvalidInput(t *testing.T) {
	dir := written(t, map[string]string{
		"class.yaml": classFile, "secret.yaml": secretFile, "two.yaml": classFile + "---\n" + classFile, "text.yaml": "\tno YAML",
		"none.yaml": strings.Replace(classFile, "provider: sim\n", "", 1), "empty.yaml": "", "provider.yaml": strings.Replace(classFile, "provider: sim", "provider: other", 1),
		"unknown.yaml": classFile + "spec: {}\n", "vm.yaml": strings.Replace(classFile, "provider: sim", "provider: vm", 1),
		"other.json":      `{"driver":"vm","class":"pool","results":[]}`,
		"bad-secret.yaml": secretFile + "data: {token: hunter2}\n",
	})
	const class, secret = "--class=class.yaml", "--secret=secret.yaml"
	for name, tc := range map[string]struct {
		args     []string
		wantText string
	}{
		"no driver":          {[]string{"--class=none.yaml", secret}, "--driver: required"},
		"unknown in class":   {[]string{"--class=provider.yaml", secret}, `--driver: unknown driver "other"; known drivers: vm, sim`},
		"a directory":        {[]string{"--class=.", secret}, "--class: read .: is a directory"},
		"an empty file":      {[]string{"--class=empty.yaml", secret}, "--class: empty.yaml: has no object, expected one class"},
		"no class in it":     {[]string{"--class=secret.yaml", secret}, "--class: secret.yaml: has no class (machine.sapcloud.io/v1alpha1), only v1 Secret"},
		"plug-ins nowhere":   {[]string{class, secret, "--driver-listen=127.0.0.1:0"}, "--driver-insecure-loopback"},
		"no wait":            {[]string{class, secret, "--driver-socket=s", "--driver-wait=0s"}, "--driver-wait"},
		"unknown driver":     {[]string{"--driver=cloud", class, secret}, `--driver: unknown driver "cloud"; known drivers: vm, sim`},
		"no class":           {[]string{"--driver=sim", secret}, "--class: required"},
		"no such class":      {[]string{"--driver=sim", "--class=absent.yaml", secret}, "--class: open absent.yaml: no such file"},
		"two classes":        {[]string{"--driver=sim", "--class=two.yaml", secret}, "--class: two.yaml: has 2 objects, expected one class"},
		"class is not YAML":  {[]string{"--driver=sim", "--class=text.yaml", secret}, "--class: text.yaml: not valid YAML"},
		"unknown field":      {[]string{"--driver=sim", "--class=unknown.yaml", secret}, `unknown field "spec"`},
		"of another driver":  {[]string{"--driver=sim", "--class=vm.yaml", secret}, `the provider of class pool is "vm", not "sim"`},
		"other cluster's":    {[]string{"--driver=sim", class, secret, "--other-cluster-class=vm.yaml"}, "--other-cluster-class: the provider of class pool is \"vm\""},
		"no Secret":          {[]string{"--driver=sim", class}, "--secret: required"},
		"bad Secret":         {[]string{"--driver=sim", class, "--secret=bad-secret.yaml"}, "--secret: bad-secret.yaml: not a valid Secret"},
		"negative limit":     {[]string{"--driver=sim", class, secret, "--rule-timeout=-1s"}, "--rule-timeout: must not be negative"},
		"not results":        {[]string{"--driver=sim", class, secret, "--resume=class.yaml"}, "--resume: class.yaml does not contain the results of a run"},
		"other results":      {[]string{"--driver=sim", class, secret, "--resume=other.json"}, `--resume: other.json has the results of driver "vm" with class "pool"`},
		"no rule":            {[]string{"--driver=sim", class, secret, "--run=R999"}, "no rule matches"},
		"no expression":      {[]string{"--driver=sim", class, secret, "--skip=("}, `--skip: "(" is not a regular expression`},
		"limit":              {[]string{"--driver=sim", class, secret, "--cost-limit=0"}, "--cost-limit: 0 is not"},
		"format":             {[]string{"--driver=sim", class, secret, "--output=xml"}, "unknown format \"xml\"; expected json or yaml"},
		"no such kubeconfig": {[]string{"--driver=vm", "--class=vm.yaml", secret, "--kubeconfig=absent.yaml"}, "--kubeconfig: "},
		"an argument":        {[]string{"now"}, `"now"`},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, _, err := run(t, dir, tc.args...)
			_, mistake := errors.AsType[*args.UsageError](err)
			if !mistake || !strings.Contains(err.Error(), tc.wantText) || strings.Contains(err.Error(), "hunter2") || strings.Contains(stdout, "passed") {
				t.Errorf("error %v, want %q; output %q", err, tc.wantText, stdout)
			}
		})
	}
}
