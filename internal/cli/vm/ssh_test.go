package vm

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
)

// apiServer serves a running VM, and returns a kubeconfig.
func apiServer(t *testing.T) string {
	t.Helper()
	vm := running(func(vm *vmv1alpha1.VirtualMachine) { vm.UID = "6b0ff0b6" })
	vm.SetGroupVersionKind(vmKind)
	version := map[string]any{"groupVersion": "vm.metropolis.monogon.dev/v1alpha1", "version": "v1alpha1"}
	responses := map[string]any{
		"/api": map[string]any{"kind": "APIVersions", "versions": []string{"v1"}},
		"/apis": map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{
			map[string]any{"name": "vm.metropolis.monogon.dev", "versions": []any{version}, "preferredVersion": version},
		}},
		"/apis/vm.metropolis.monogon.dev/v1alpha1": map[string]any{
			"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "vm.metropolis.monogon.dev/v1alpha1",
			"resources": []any{map[string]any{"name": "virtualmachines", "namespaced": true, "kind": "VirtualMachine", "verbs": []string{"get"}}},
		},
		"/apis/vm.metropolis.monogon.dev/v1alpha1/namespaces/shop/virtualmachines/web": vm,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response, has := responses[r.URL.Path]
		if !has {
			t.Logf("no response to %s", r.URL.Path)
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(response)
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "it's 100%", "kubeconfig")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: '" + server.URL + "'}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// openSSH replaces ssh and scp by programs that print their arguments, one on each line, and exit with 7.
func openSSH(t *testing.T) {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"ssh", "scp"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", "")
}

// TestSSH_Arguments checks the arguments of the programs of OpenSSH, and their exit status.
func TestSSH_Arguments(t *testing.T) {
	kubeconfig := apiServer(t)
	openSSH(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	proxy := func(port string) string {
		quoted := "'" + strings.ReplaceAll(strings.ReplaceAll(kubeconfig, "'", `'\''`), "%", "%%") + "'"
		return "ProxyCommand=" + program + " vm port-forward --stdio --namespace shop --kubeconfig " + quoted + " --context a web " + port
	}
	keys := `UserKnownHostsFile="` + filepath.Join(os.Getenv("HOME"), ".config", "millwright", "vm_known_hosts") + `"`
	common := func(port string) []string {
		return []string{"-o", proxy(port), "-o", "HostKeyAlias=millwright-vm-6b0ff0b6", "-o", keys, "-o", "StrictHostKeyChecking=accept-new", "-o", "HashKnownHosts=no"}
	}
	for name, test := range map[string]struct {
		cmd  *cobra.Command
		args []string
		want []string
	}{
		"a shell":   {newSSH(), []string{"web"}, append(common("22"), "--", "web.shop.vm")},
		"a command": {newSSH(), []string{"admin@web", "--", "ls", "-l"}, append(common("22"), "-o", "User=admin", "--", "web.shop.vm", "ls", "-l")},
		"options": {
			newSSH(), []string{"web", "-p", "2222", "-i", "key", "--ssh-option", "LogLevel=ERROR", "--ssh-option", "StrictHostKeyChecking=no"},
			append(append([]string{"-o", "LogLevel=ERROR", "-o", "StrictHostKeyChecking=no"}, common("2222")...), "-i", "key", "--", "web.shop.vm"),
		},
		"to a VM":   {newSCP(), []string{"a", "./b:c", "admin@web:/tmp"}, append(common("22"), "-o", "User=admin", "--", "a", "./b:c", "web.shop.vm:/tmp")},
		"from a VM": {newSCP(), []string{"-r", "web:a", "web:", "."}, append(common("22"), "-r", "--", "web.shop.vm:a", "web.shop.vm:", ".")},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			test.cmd.SetArgs(append([]string{"--kubeconfig", kubeconfig, "--context", "a", "-n", "shop"}, test.args...))
			test.cmd.SetOut(&out)
			test.cmd.SilenceUsage, test.cmd.SilenceErrors = true, true
			if err := test.cmd.ExecuteContext(t.Context()); !errors.Is(err, args.ExitStatus(7)) {
				t.Errorf("error = %v, want exit status 7", err)
			}
			if diff := cmp.Diff(test.want, strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}

// Without OpenSSH, the error names what is missing.
func TestSSH_NotInstalled(t *testing.T) {
	kubeconfig := apiServer(t)
	openSSH(t)
	t.Setenv("PATH", t.TempDir())
	for program, arguments := range map[string][]string{"ssh": {"ssh", "web"}, "scp": {"scp", "a", "web:"}} {
		cmd := New()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(append(arguments, "--kubeconfig", kubeconfig, "-n", "shop"))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot find "+program) || !strings.Contains(err.Error(), "install the OpenSSH client") {
			t.Errorf("%s: %v", program, err)
		}
	}
}

// Arguments that ssh would misunderstand are rejected before anything is run.
func TestSSH_InvalidArguments(t *testing.T) {
	for name, arguments := range map[string][]string{
		"no name":                     {"ssh"},
		"only a command":              {"ssh", "--", "ls"},
		"a command without --":        {"ssh", "web", "ls"},
		"port 0":                      {"ssh", "web", "-p", "0"},
		"too high a port":             {"ssh", "web", "-p", "65536"},
		"no user":                     {"ssh", "@web"},
		"an option as the user":       {"ssh", "-o@web"},
		"a user with a space":         {"ssh", "a b@web"},
		"a user with a quote":         {"ssh", `a"@web`},
		"no VM":                       {"scp", "a", "b"},
		"one path":                    {"scp", "web:a"},
		"between VMs":                 {"scp", "web:a", "db:b"},
		"on the VM":                   {"scp", "web:a", "web:b"},
		"sources on both sides":       {"scp", "web:a", "b", "."},
		"sources on both sides, too":  {"scp", "a", "web:b", "."},
		"sources of different users":  {"scp", "a@web:a", "b@web:b", "."},
		"a target with another user ": {"scp", "a", " @web:"},
	} {
		cmd := New()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(arguments)
		if err := cmd.ExecuteContext(t.Context()); err == nil || name != "an option as the user" && !isUsageError(err) {
			t.Errorf("%s: %v, want a usage error", name, err)
		}
	}
}
