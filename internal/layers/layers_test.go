package layers

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/repository"
)

// root is the path of the repository, relative to this package.
const root = "../.."

func TestLayers_ImportsFollowRules(t *testing.T) {
	packages := scan(t)
	if !slices.ContainsFunc(packages, func(p goPackage) bool { return p.directory == "api/machine/v1alpha1" }) {
		t.Fatal("the scan did not find api/machine/v1alpha1; it must have looked at the wrong directory")
	}
	for _, v := range violations(rules, packages) {
		t.Error(v)
	}
}

// A package that must not import Kubernetes must not depend on it through a library either.
func TestLayers_KubernetesIsNotImportedIndirectly(t *testing.T) {
	checked := 0
	for _, r := range rules {
		if !slices.Contains(r.never, kubernetes[0]) {
			continue
		}
		for _, directory := range r.from {
			if _, err := os.Stat(filepath.Join(root, directory)); err != nil {
				continue // does not exist yet
			}
			checked++
			for _, dependency := range dependencies(t, directory) {
				if anyWithin(dependency, kubernetes) {
					t.Errorf("%s depends on %s", directory, dependency)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no directories to check; check the names in the rules")
	}
}

func dependencies(t *testing.T, directory string) []string {
	t.Helper()
	repository.DependOnAllFiles()
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+directory+"/...")
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return strings.Fields(string(out))
}

func TestRules_DirectoryHasOneRule(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rules {
		for _, directory := range r.from {
			if seen[directory] {
				t.Errorf("%s has two rules", directory)
			}
			seen[directory] = true
		}
	}
}

func TestRules(t *testing.T) {
	tests := map[string]struct {
		directory, imports string
		onlyTests          bool
		rejected           bool
	}{
		"types import the driver package":        {directory: "api/machine/v1alpha1", imports: ours + "/driver", rejected: true},
		"types import Kubernetes":                {directory: "api/machine/v1alpha1", imports: "k8s.io/api/core/v1"},
		"a driver package imports another":       {directory: "driver/sim", imports: ours + "/driver/codes"},
		"a driver package imports types":         {directory: "driver/sim", imports: ours + "/api/machine/v1alpha1"},
		"a driver package imports internal":      {directory: "driver/sim", imports: ours + "/internal/reconcile/flow", rejected: true},
		"flow imports Kubernetes":                {directory: "internal/reconcile/flow", imports: "k8s.io/apimachinery/pkg/util/wait", rejected: true},
		"flow imports controller-runtime":        {directory: "internal/reconcile/flow", imports: "sigs.k8s.io/controller-runtime", rejected: true},
		"flow's tests import Kubernetes":         {directory: "internal/reconcile/flow", imports: "k8s.io/api/core/v1", onlyTests: true, rejected: true},
		"flow imports the standard library":      {directory: "internal/reconcile/flow", imports: "time"},
		"hypervisor imports network":             {directory: "internal/vm/hypervisor/qemu", imports: ours + "/internal/vm/network"},
		"hypervisor imports types":               {directory: "internal/vm/hypervisor", imports: ours + "/api/vm/v1alpha1", rejected: true},
		"virtualmachine imports hypervisor":      {directory: "internal/controllers/virtualmachine", imports: ours + "/internal/vm/hypervisor", rejected: true},
		"the VM driver imports the SDK":          {directory: "drivers/vm", imports: ours + "/driver/status"},
		"the VM driver imports a controller":     {directory: "drivers/vm", imports: ours + "/internal/controllers/virtualmachine", rejected: true},
		"a new driver has no layer":              {directory: "drivers/other", imports: "time", rejected: true},
		"instance imports a controller":          {directory: "internal/lifecycle/instance", imports: ours + "/internal/controllers/machine", rejected: true},
		"instance imports the SDK":               {directory: "internal/lifecycle/instance", imports: ours + "/driver"},
		"controllers import each other":          {directory: "internal/controllers/machinedeployment", imports: ours + "/internal/controllers/machineset", rejected: true},
		"a longer name is another directory":     {directory: "internal/controllers/machine", imports: ours + "/internal/controllers/machineset", rejected: true},
		"a controller imports drain":             {directory: "internal/controllers/machine", imports: ours + "/internal/lifecycle/drain"},
		"a controller's tests import env":        {directory: "internal/controllers/machineset", imports: ours + "/test/env", onlyTests: true},
		"a controller imports env":               {directory: "internal/controllers/machineset", imports: ours + "/test/env", rejected: true},
		"drain imports the SDK":                  {directory: "internal/lifecycle/drain", imports: ours + "/driver", rejected: true},
		"capi imports a controller":              {directory: "internal/controllers/capi", imports: ours + "/internal/controllers/machine", rejected: true},
		"local imports a controller":             {directory: "internal/local/controlplane", imports: ours + "/internal/controllers/machineset", rejected: true},
		"manager imports controllers":            {directory: "internal/manager", imports: ours + "/internal/controllers/machine"},
		"manager imports local":                  {directory: "internal/manager", imports: ours + "/internal/local/controlplane", rejected: true},
		"provider imports the manager's flags":   {directory: "provider", imports: ours + "/internal/cli/manager"},
		"provider imports local":                 {directory: "provider", imports: ours + "/internal/local/controlplane", rejected: true},
		"provider imports the VM driver":         {directory: "provider", imports: ours + "/drivers/vm", rejected: true},
		"cli imports local":                      {directory: "internal/cli", imports: ours + "/internal/local/controlplane"},
		"guest imports internal":                 {directory: "guest/init", imports: ours + "/internal/vm/network", rejected: true},
		"the control plane imports types":        {directory: "controlplane/cmd/kubernetes", imports: ours + "/api/machine/v1alpha1", rejected: true},
		"a new top-level directory has no layer": {directory: "pkg/thing", imports: "time", rejected: true},
		"a package at the root has no layer":     {directory: ".", imports: "time", rejected: true},
		"a new internal package has no layer":    {directory: "internal/misc", imports: "time", rejected: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pkg := goPackage{directory: test.directory, imports: map[string]bool{test.imports: test.onlyTests}}
			found := violations(rules, []goPackage{pkg})
			if rejected := len(found) > 0; rejected != test.rejected {
				t.Errorf("rejected = %t, want %t: %q", rejected, test.rejected, found)
			}
		})
	}
}
