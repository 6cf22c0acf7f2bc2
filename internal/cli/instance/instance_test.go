package instance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/cli/args"
)

const (
	classFile = `apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: small, namespace: shoot}
provider: sim
providerSpec: {tags: {kubernetes.io/cluster/c: "1"}}
---
kind: Secret
`
	awsFile = `apiVersion: machine.sapcloud.io/v1alpha1
kind: AWSMachineClass
metadata: {name: big, namespace: shoot}
spec: {ami: ami-1, tags: {kubernetes.io/cluster/c: "1"}}
`
	secretFile = `{"apiVersion": "v1", "kind": "Secret", "stringData": {"userData": "join <<MACHINE_NAME>>", "token": "s3cr3t-token"}}`
)

// world is a provider, and a directory with files.
type world struct {
	*testing.T
	cloud  *sim.Cloud
	config sim.Config
	dir    string
	// change modifies the driver. It may be nil.
	change func(*sim.Driver) driver.Driver
	// problems is what the commands have written to standard error.
	problems *problems
}

// problems is a text that is safe for concurrent writes.
type problems struct {
	mu   sync.Mutex
	text strings.Builder
	// written is called with each write. It may be nil.
	written func(text string)
}

func (p *problems) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written != nil {
		p.written(string(text))
	}
	return p.text.Write(text)
}

func (p *problems) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, cloud: sim.NewCloud(sim.CloudOptions{}), dir: t.TempDir(), problems: &problems{}}
	w.config.Cloud = w.cloud
	for name, text := range map[string]string{"class": classFile, "aws": awsFile, "secret": secretFile} {
		w.write(name, text)
	}
	return w
}

func (w *world) write(name, text string) string {
	w.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	return path
}

func (w *world) kinds() registry.Kinds {
	return registry.Kinds{{Name: "sim", Open: func(context.Context, registry.Environment) (driver.Driver, error) {
		if w.change != nil {
			return w.change(sim.New(w.config)), nil
		}
		return sim.New(w.config), nil
	}}}
}

// run runs a command. FILE in an argument is replaced by the path of that file in the directory.
func (w *world) run(arguments ...string) (string, error) {
	w.Helper()
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	all, err := commands(w.kinds)
	if err != nil {
		w.Fatal(err)
	}
	manageVM, err := NewManageVM(w.kinds())
	if err != nil {
		w.Fatal(err)
	}
	root.AddCommand(append(all, manageVM)...)
	out := &bytes.Buffer{}
	root.SetOut(out)
	root.SetErr(w.problems)
	for i, argument := range arguments {
		if name, ok := strings.CutPrefix(argument, "@"); ok {
			arguments[i] = filepath.Join(w.dir, name)
		}
	}
	root.SetArgs(arguments)
	err = root.ExecuteContext(w.Context())
	return out.String(), err
}

func (w *world) must(arguments ...string) string {
	w.Helper()
	out, err := w.run(arguments...)
	if err != nil {
		w.Fatalf("%v: %v", arguments, err)
	}
	return out
}

// machines returns the names of the machines with VMs.
func (w *world) machines() []string {
	w.Helper()
	vms, err := w.cloud.VMs()
	if err != nil {
		w.Fatal(err)
	}
	names := []string{}
	for _, v := range vms {
		names = append(names, v.Machine)
	}
	return names
}

func (w *world) want(names ...string) {
	w.Helper()
	if diff := cmp.Diff(append([]string{}, names...), w.machines()); diff != "" {
		w.Errorf("VMs (-want +got):\n%s", diff)
	}
}

func TestInstance_Lifecycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := []string{"--class", "@class", "--secret", "@secret"}
	with := func(arguments ...string) []string { return append(arguments, files...) }
	created := w.must(with("create", "test")...)
	if lines := strings.Split(created, "\n"); !strings.HasPrefix(lines[0], "Machine id: sim:///shoot/test/1-") || lines[1] != "Name: test" || !strings.Contains(created, "State: Created") {
		t.Errorf("printed:\n%s", created)
	}
	w.want("test")
	if again := w.must(with("create", "test")...); !strings.Contains(again, "State: Exists") {
		t.Errorf("printed:\n%s", again)
	}
	var found result
	if err := json.Unmarshal([]byte(w.must(with("status", "--name", "test", "-o", "json")...)), &found); err != nil || found.State != stateExists || found.NodeName != "test" || len(found.Addresses) == 0 {
		t.Errorf("status: %+v, %v", found, err)
	}
	if list := w.must(with("list")...); !strings.Contains(list, "test   "+found.ProviderID) {
		t.Errorf("list:\n%s", list)
	}
	if deleted := w.must(with("delete", "test", "--id", found.ProviderID)...); !strings.Contains(deleted, "State: Deleted") {
		t.Errorf("printed:\n%s", deleted)
	}
	w.want()
	if _, err := w.run(with("status", "test")...); err == nil {
		t.Error("a VM that does not exist is not an error")
	}
	w.must(with("delete", "test")...)
	if list := w.must(with("list")...); list != "No VMs found.\n" {
		t.Errorf("list: %q", list)
	}
}

// TestInstance_InitializationIsCompletedLater checks that a VM is initialized if required, including in a later run.
func TestInstance_InitializationIsCompletedLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config.RequireInitialize = true
	w.cloud.Fail(sim.Fault{Method: sim.InitializeMachine})
	if _, err := w.run("create", "test", "--class", "@class", "--secret", "@secret"); !status.Is(err, codes.Unavailable) || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a failed initialisation: %v", err)
	}
	if out := w.must("status", "test", "--class", "@class", "--secret", "@secret"); !strings.Contains(out, "State: Uninitialized") {
		t.Errorf("printed:\n%s", out)
	}
	w.must("create", "test", "--class", "@class", "--secret", "@secret")
	if out := w.must("status", "test", "--class", "@class", "--secret", "@secret"); !strings.Contains(out, "State: Exists") {
		t.Errorf("printed:\n%s", out)
	}
}

// TestManageVM checks that MCM's flags work with all commands, and that a class of a legacy kind is migrated.
func TestManageVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := []string{"--secret", "@secret", "--machineclass", "@aws", "--classkind", "AWS", "--machinename", "test", "--driver", "sim"}
	with := func(arguments ...string) []string { return append(arguments, old...) }
	out := w.must(with("managevm")...)
	id, _, _ := strings.Cut(strings.TrimPrefix(out, "Machine id: "), "\n")
	w.want("test")
	w.must(with("create")...)
	w.want("test")
	w.must(with("managevm", "--machineid", id)...)
	w.want()
}

// TestInstance_DryRunChangesNothing checks that a dry run prints what would happen, and changes nothing.
func TestInstance_DryRunChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := []string{"--class", "@class", "--secret", "@secret"}
	if out := w.must(append([]string{"create", "test", "--dry-run"}, files...)...); !strings.Contains(out, "State: Created (dry run") {
		t.Errorf("printed:\n%s", out)
	}
	w.want()
	w.must(append([]string{"create", "test"}, files...)...)
	var would result
	if err := json.Unmarshal([]byte(w.must(append([]string{"delete", "test", "--dry-run", "-o", "json"}, files...)...)), &would); err != nil || !would.DryRun || would.State != stateDeleted {
		t.Errorf("%+v, %v", would, err)
	}
	w.want("test")
}

// TestInstance_RejectsInvalidArguments checks that mistakes are rejected before the driver is called, and that wrong arguments are usage
// errors.
func TestInstance_RejectsInvalidArguments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write("typo", strings.Replace(classFile, "providerSpec", "providerSpecs", 1))
	w.write("typo-aws", strings.Replace(awsFile, "ami:", "amy:", 1))
	w.write("two", classFile+"---\n"+classFile)
	w.write("garbage", "\x00{")
	w.write("binary", `{"kind": "Secret", "data": {"token": "s3cr3t-token!"}}`)
	w.write("no-user-data", `{"kind": "Secret", "data": {}}`)
	for name, tc := range map[string]struct {
		arguments []string
		usage     bool
		wantText  string
	}{
		"no class":          {[]string{"create", "test"}, true, "--class"},
		"no name":           {[]string{"create", "--class", "@class"}, true, "name"},
		"two names":         {[]string{"create", "a", "--name", "b", "--class", "@class"}, true, "expected one argument"},
		"no such file":      {[]string{"create", "test", "--class", "@none"}, true, "none"},
		"unknown field":     {[]string{"create", "test", "--class", "@typo"}, true, "providerSpecs"},
		"unknown AWS field": {[]string{"create", "test", "--class", "@typo-aws"}, true, "amy"},
		"two classes":       {[]string{"create", "test", "--class", "@two"}, true, "2 objects, expected one"},
		"not valid YAML":    {[]string{"create", "test", "--class", "@garbage"}, true, "not valid YAML"},
		"not that kind":     {[]string{"create", "test", "--class", "@class", "--class-kind", "GCP"}, true, "only machine.sapcloud.io/v1alpha1 MachineClass, Secret"},
		"no such kind":      {[]string{"create", "test", "--class", "@class", "--class-kind", "IBM"}, true, "IBM"},
		"a Secret's value":  {[]string{"create", "test", "--class", "@class", "--secret", "@binary"}, true, "base64"},
		"no user data":      {[]string{"create", "test", "--class", "@class", "--secret", "@no-user-data"}, false, "userData"},
		"no Secret":         {[]string{"create", "test", "--class", "@class"}, false, "userData"},
		"another driver":    {[]string{"create", "test", "--class", "@class", "--secret", "@secret", "--driver", "aws"}, true, `unknown driver "aws"`},
		"output":            {[]string{"list", "--class", "@class", "-o", "xml"}, true, "xml"},
		"timeout":           {[]string{"list", "--class", "@class", "--timeout", "0"}, true, "--timeout"},
	} {
		_, err := w.run(tc.arguments...)
		if err == nil || !strings.Contains(err.Error(), tc.wantText) || strings.Contains(err.Error(), "s3cr3t-token") {
			t.Errorf("%s: %v, want %q", name, err, tc.wantText)
		}
		if _, usage := errors.AsType[*args.UsageError](err); usage != tc.usage {
			t.Errorf("%s: a mistake in the arguments: %t", name, usage)
		}
	}
	w.want()
}

// TestInstance_OnlyDriverIsDefault checks that the only driver of a program is used for a class without a provider.
func TestInstance_OnlyDriverIsDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("create", "test", "--class", "@aws", "--secret", "@secret")
	w.want("test")
}

// TestInstance_OutputHidesSecrets checks that values of the Secret are removed from driver errors, as in a manager.
func TestInstance_OutputHidesSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const token = "t0ken-of-the-provider"
	w.write("credentials", `{"kind": "Secret", "stringData": {"userData": "join", "token": "`+token+`"}}`)
	for _, command := range []string{"create", "status", "delete", "list"} {
		w.cloud.ClearFaults()
		w.cloud.Fail(sim.Fault{Codes: []codes.Code{codes.Unauthenticated}, Message: "401 for " + token, Times: -1})
		arguments := []string{command, "--class", "@class", "--secret", "@credentials"}
		if command != "list" {
			arguments = append(arguments, "test")
		}
		if out, err := w.run(arguments...); err == nil || strings.Contains(out+err.Error(), token) || !strings.Contains(err.Error(), "401") {
			t.Errorf("%s prints %q and %v", command, out, err)
		}
	}
}

// TestInstance_KeepsDriverErrorCode checks that the driver's error code is kept.
func TestInstance_KeepsDriverErrorCode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := []string{"--class", "@class", "--secret", "@secret"}
	for method, command := range map[sim.Method]string{
		sim.GetMachineStatus: "create", sim.CreateMachine: "create", sim.ListMachines: "list", sim.DeleteMachine: "delete",
	} {
		w.cloud.Fail(sim.Fault{Method: method, Codes: []codes.Code{codes.PermissionDenied}})
		arguments := append([]string{command}, files...)
		if command != "list" {
			arguments = append(arguments, "test")
		}
		if _, err := w.run(arguments...); !status.Is(err, codes.PermissionDenied) || !strings.Contains(err.Error(), string(method)) {
			t.Errorf("%s: %v", method, err)
		}
	}
	w.want()
}

// TestInstance_DeletionTimesOut checks that a deletion that does not complete in time is reported.
func TestInstance_DeletionTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // otherwise the time could expire before the deletion is accepted
		w := newWorld(t)
		slow := w.write("slow", strings.Replace(classFile, `{tags`, `{deleteDelay: 1h, tags`, 1))
		w.must(about("create", "test")...)
		_, err := w.run("delete", "test", "--class", slow, "--secret", "@secret", "--timeout", "100ms")
		if err == nil || !strings.Contains(err.Error(), "--timeout") || !strings.Contains(err.Error(), "the VM still exists") {
			t.Errorf("a slow deletion: %v", err)
		}
	})
}
