package vms

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// conformanceClass has a size, and what a VM boots.
const conformanceClass = `
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: pool, namespace: default}
provider: vm
providerSpec: {"vmPool":"default","size":%q,"rootFsSize":1,"tags":{"kubernetes.io/cluster/test":"1","kubernetes.io/role/node":"1"},%s}
secretRef: {name: pool, namespace: default}
`

const conformanceSecret = `
apiVersion: v1
kind: Secret
metadata: {name: pool, namespace: default}
stringData: {userData: "#millwright-guest"}
`

// TestConformance runs the conformance command for the driver with VMs on QEMU, and checks that nothing remains.
// It runs some of the rules about VMs, and all of them in an exhaustive run, which takes two minutes longer.
func TestConformance(t *testing.T) {
	tier.All(t)
	c := up(t)
	file := func(name, text string) string {
		path := filepath.Join(c.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	arguments := []string{
		"conformance", "--kubeconfig", filepath.Join(c.dir, "kubeconfig"), "--secret", file("secret.yaml", conformanceSecret),
		"--class", file("class.yaml", fmt.Sprintf(conformanceClass, "xsmall", c.kernelBoot())),
		"--changed-class", file("changed.yaml", fmt.Sprintf(conformanceClass, "small", c.kernelBoot())),
	}
	if !tier.Exhaustive() {
		arguments = append(arguments, "--run", "R17|R20|R23|R29|R34|R38")
	}
	out, status := program.Run(t, arguments...)
	if status != 0 || strings.Contains(out, "failed ") || !strings.Contains(out, "passed    R29 DeleteMachine deletes the VM") {
		t.Errorf("status %d:\n%s", status, out)
	}
	c.eventually(soon, func(g gomega.Gomega) {
		vms := &vmv1alpha1.VirtualMachineList{}
		g.Expect(c.client.List(t.Context(), vms)).To(gomega.Succeed())
		g.Expect(vms.Items).To(gomega.BeEmpty())
		g.Expect(c.processes("-uuid ")).To(gomega.BeEmpty(), "QEMUs")
	})
}
