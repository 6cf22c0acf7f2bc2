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

// root of the repository, seen from this package.
const root = "../.."

func TestEveryPackageKeepsToItsLayer(t *testing.T) {
	packages := scan(t)
	if !slices.ContainsFunc(packages, func(p goPackage) bool { return p.folder == "api/machine/v1alpha1" }) {
		t.Fatal("the scan did not find api/machine/v1alpha1, so it looked at the wrong tree")
	}
	for _, v := range violations(rules, packages) {
		t.Error(v)
	}
}

// A package that may not import Kubernetes must not get it through a library either.
func TestNothingBringsKubernetesInByABackDoor(t *testing.T) {
	checked := 0
	for _, r := range rules {
		if !slices.Contains(r.never, kubernetes[0]) {
			continue
		}
		for _, folder := range r.from {
			if _, err := os.Stat(filepath.Join(root, folder)); err != nil {
				continue // not written yet
			}
			checked++
			for _, dependency := range dependencies(t, folder) {
				if anyWithin(dependency, kubernetes) {
					t.Errorf("%s depends on %s", folder, dependency)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no folder to check: are the names in the rules still right?")
	}
}

func dependencies(t *testing.T, folder string) []string {
	t.Helper()
	repository.DependOnAllFiles()
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+folder+"/...")
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return strings.Fields(string(out))
}

func TestNoFolderHasTwoRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rules {
		for _, folder := range r.from {
			if seen[folder] {
				t.Errorf("%s is in two rules", folder)
			}
			seen[folder] = true
		}
	}
}

func TestRules(t *testing.T) {
	tests := map[string]struct {
		folder, imports string
		onlyTests       bool
		refused         bool
	}{
		"types import none of ours":             {folder: "api/machine/v1alpha1", imports: ours + "/driver", refused: true},
		"types import Kubernetes":               {folder: "api/machine/v1alpha1", imports: "k8s.io/api/core/v1"},
		"a driver package imports its sibling":  {folder: "driver/sim", imports: ours + "/driver/codes"},
		"a driver package imports types":        {folder: "driver/sim", imports: ours + "/api/machine/v1alpha1"},
		"a driver package imports internal":     {folder: "driver/sim", imports: ours + "/internal/reconcile/flow", refused: true},
		"flow imports Kubernetes":               {folder: "internal/reconcile/flow", imports: "k8s.io/apimachinery/pkg/util/wait", refused: true},
		"flow imports controller-runtime":       {folder: "internal/reconcile/flow", imports: "sigs.k8s.io/controller-runtime", refused: true},
		"flow's tests import Kubernetes":        {folder: "internal/reconcile/flow", imports: "k8s.io/api/core/v1", onlyTests: true, refused: true},
		"flow imports the standard library":     {folder: "internal/reconcile/flow", imports: "time"},
		"hypervisor imports network":            {folder: "internal/vm/hypervisor/qemu", imports: ours + "/internal/vm/network"},
		"hypervisor imports types":              {folder: "internal/vm/hypervisor", imports: ours + "/api/vm/v1alpha1", refused: true},
		"virtualmachine imports hypervisor":     {folder: "internal/controllers/virtualmachine", imports: ours + "/internal/vm/hypervisor", refused: true},
		"the VM driver imports the SDK":         {folder: "drivers/vm", imports: ours + "/driver/status"},
		"the VM driver takes a short cut":       {folder: "drivers/vm", imports: ours + "/internal/controllers/virtualmachine", refused: true},
		"another driver has no row":             {folder: "drivers/other", imports: "time", refused: true},
		"instance imports a controller":         {folder: "internal/lifecycle/instance", imports: ours + "/internal/controllers/machine", refused: true},
		"instance imports the SDK":              {folder: "internal/lifecycle/instance", imports: ours + "/driver"},
		"controllers import each other":         {folder: "internal/controllers/machinedeployment", imports: ours + "/internal/controllers/machineset", refused: true},
		"a longer name is another folder":       {folder: "internal/controllers/machine", imports: ours + "/internal/controllers/machineset", refused: true},
		"a controller imports drain":            {folder: "internal/controllers/machine", imports: ours + "/internal/lifecycle/drain"},
		"a controller's tests import env":       {folder: "internal/controllers/machineset", imports: ours + "/test/env", onlyTests: true},
		"a controller imports env":              {folder: "internal/controllers/machineset", imports: ours + "/test/env", refused: true},
		"drain imports the SDK":                 {folder: "internal/lifecycle/drain", imports: ours + "/driver", refused: true},
		"capi imports a controller":             {folder: "internal/controllers/capi", imports: ours + "/internal/controllers/machine", refused: true},
		"local imports a controller":            {folder: "internal/local/controlplane", imports: ours + "/internal/controllers/machineset", refused: true},
		"manager imports controllers":           {folder: "internal/manager", imports: ours + "/internal/controllers/machine"},
		"manager imports local":                 {folder: "internal/manager", imports: ours + "/internal/local/controlplane", refused: true},
		"provider imports the manager's flags":  {folder: "provider", imports: ours + "/internal/cli/manager"},
		"provider imports local":                {folder: "provider", imports: ours + "/internal/local/controlplane", refused: true},
		"provider imports our drivers":          {folder: "provider", imports: ours + "/drivers/vm", refused: true},
		"cli imports local":                     {folder: "internal/cli", imports: ours + "/internal/local/controlplane"},
		"guest imports internal":                {folder: "guest/init", imports: ours + "/internal/vm/network", refused: true},
		"the control plane imports ours":        {folder: "controlplane/cmd/kubernetes", imports: ours + "/api/machine/v1alpha1", refused: true},
		"a new top-level folder is in no layer": {folder: "pkg/thing", imports: "time", refused: true},
		"a package at the root is in no layer":  {folder: ".", imports: "time", refused: true},
		"a new internal package is in no layer": {folder: "internal/misc", imports: "time", refused: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pkg := goPackage{folder: test.folder, imports: map[string]bool{test.imports: test.onlyTests}}
			found := violations(rules, []goPackage{pkg})
			if refused := len(found) > 0; refused != test.refused {
				t.Errorf("refused = %t, want %t: %q", refused, test.refused, found)
			}
		})
	}
}
