package common

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// variables are all variables that fromEnvironment reads; a case sets some of them.
var variables = []string{
	"MACHINE_CONTROLLER_COMMAND", "MACHINE_CONTROLLER_MANAGER_COMMAND", "MC_IMAGE_TAG", "MCM_IMAGE_TAG", "MACHINE_CONTROLLER_MANAGER_DEPLOYMENT_NAME", "TARGET_CLUSTER_NAME",
	"TAGS_ARE_STRINGS", "IS_CONTROL_CLUSTER_SEED", "PRESERVE_CRD_AT_END", "IS_VIRTUAL_PROVIDER", "GNA_SECRET_NAME",
}

// TestEnvironment_RejectsInvalidVariables: missing and conflicting variables are errors.
func TestEnvironment_RejectsInvalidVariables(t *testing.T) {
	for name, tc := range map[string]struct {
		set  map[string]string
		want string
	}{
		"required variables":     {map[string]string{}, ""},
		"no cluster":             {map[string]string{"CONTROL_KUBECONFIG": ""}, "CONTROL_KUBECONFIG"},
		"no class":               {map[string]string{"MACHINECLASS_V1": ""}, "MACHINECLASS_V1"},
		"no class, in a seed":    {map[string]string{"MACHINECLASS_V1": "", "IS_CONTROL_CLUSTER_SEED": "true"}, ""},
		"one command in a seed":  {map[string]string{"IS_CONTROL_CLUSTER_SEED": "true", "MACHINE_CONTROLLER_COMMAND": "x"}, "both MACHINE_CONTROLLER_COMMAND and MACHINE_CONTROLLER_MANAGER_COMMAND"},
		"an image":               {map[string]string{"MC_IMAGE_TAG": "x"}, ""},
		"image and command":      {map[string]string{"MC_IMAGE_TAG": "x", "MACHINE_CONTROLLER_COMMAND": "y"}, "MACHINE_CONTROLLER_COMMAND"},
		"neither true nor false": {map[string]string{"PRESERVE_CRD_AT_END": "maybe"}, `invalid value "maybe" of PRESERVE_CRD_AT_END`},
		"tags without a name":    {map[string]string{"TAGS_ARE_STRINGS": "true"}, "TARGET_CLUSTER_NAME"},
		"tags with a name":       {map[string]string{"TAGS_ARE_STRINGS": "true", "TARGET_CLUSTER_NAME": "c"}, ""},
		"false values":           {map[string]string{"IS_VIRTUAL_PROVIDER": "false", "TAGS_ARE_STRINGS": "false"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := environmentWith(t, tc.set)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q", err, tc.want)
			}
			if e.namespace == "" || e.images.deployment != managerContainer {
				t.Errorf("got default namespace %q and Deployment %q", e.namespace, e.images.deployment)
			}
		})
	}
}

func environmentWith(t *testing.T, set map[string]string) (environment, error) {
	t.Helper()
	for _, variable := range variables {
		t.Setenv(variable, "")
	}
	t.Setenv("CONTROL_KUBECONFIG", "kubeconfig")
	t.Setenv("MACHINECLASS_V1", "class")
	for variable, value := range set {
		t.Setenv(variable, value)
	}
	return fromEnvironment()
}

// TestMakeStart_StartsControllers: without a command and an image, "make start" starts the controllers in the provider's directory
// and in dev/mcm.
func TestMakeStart_StartsControllers(t *testing.T) {
	provider := t.TempDir()
	for dir, rule := range map[string]string{".": "all:\n\nstart: build\n", "dev/mcm": "start:\n", "test/integration/controller": ""} {
		if err := os.MkdirAll(filepath.Join(provider, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(provider, dir, "Makefile"), []byte(rule), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(provider, "test", "integration", "controller"))
	for name, tc := range map[string]struct {
		set                map[string]string
		machines, managers string
	}{
		"both":        {nil, "make --directory=../../.. start CONTROL_KUBECONFIG=/", "MACHINE_SAFETY_OVERSHOOTING_PERIOD=300ms"},
		"a command":   {map[string]string{"MACHINE_CONTROLLER_COMMAND": "mine"}, "mine", "make --directory=../../../dev/mcm start"},
		"an image":    {map[string]string{"MC_IMAGE_TAG": "x"}, "", ""}, // the Deployment contains both controllers
		"both images": {map[string]string{"MC_IMAGE_TAG": "x", "MCM_IMAGE_TAG": "y"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := environmentWith(t, tc.set)
			if err != nil {
				t.Fatal(err)
			}
			for log, want := range map[string]string{machinesLog: tc.machines, managerLog: tc.managers} {
				if got := e.commands[log].line; (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("%s: got %q, want %q", log, got, want)
				}
			}
		})
	}
}

// TestPatch_FromFileAndTags: patches come from a file and from tags; a provider without real machines has neither.
func TestPatch_FromFileAndTags(t *testing.T) {
	provider := t.TempDir()
	for _, dir := range []string{"test/integration/controller", ".ci/controllers-test"} {
		if err := os.MkdirAll(filepath.Join(provider, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(provider, "test", "integration", "controller"))
	e := environment{cluster: "c", classes: classes{tagsAreStrings: true}}
	const tags = `{"providerSpec":{"tags":["c","kubernetes-io-cluster-c","kubernetes-io-role-integration-test"]}}`
	check := func(want ...string) {
		t.Helper()
		got, err := e.patches()
		if err != nil || len(got) != len(want) {
			t.Fatalf("got patches %s, %v; want %s", got, err, want)
		}
		for i := range want {
			if string(got[i]) != want[i] {
				t.Errorf("got patch %s, want %s", got[i], want[i])
			}
		}
	}
	check(tags)
	if err := os.WriteFile(filepath.Join(provider, ".ci", "controllers-test", patchFile), []byte(`{"a":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	check(`{"a":1}`, tags)
	e.virtual = true
	check()
}
