package modules

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/fixture"
	"github.com/millwright-dev/millwright/test/program"
)

// TestTheExampleProvider: a driver outside of this repository is built without a replace, as if Millwright
// were published, and a deployment creates machines with it.
func TestTheExampleProvider(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks modules of Kubernetes, and starts a control plane")
	}
	t.Parallel()
	built := buildExample(t)
	e := env.New(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	start(t, exec.CommandContext(context.Background(), filepath.Join(built, "cloud"), "-address="+address, "-token=t0ken"))
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	env.WriteKubeconfig(t, kubeconfig, e.Admin)
	start(t, exec.CommandContext(context.Background(), filepath.Join(built, "provider"), "manager", "--control-kubeconfig="+kubeconfig,
		"--target-kubeconfig=none", "--namespace="+e.Namespace, "--address=127.0.0.1", "--port=0", "--example-url=http://"+address))

	class := fixture.In(e.Namespace, fixture.MachineClass())
	class.Provider, class.ProviderSpec.Raw = "example", []byte(`{"size":"small","tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`)
	secret := fixture.In(e.Namespace, fixture.Secret())
	secret.Data = map[string][]byte{"userData": []byte("#cloud-config"), "token": []byte("t0ken")}
	deployment := fixture.In(e.Namespace, fixture.Deployment(2, fixture.OfClass(fixture.Class)))
	for _, object := range []client.Object{secret, class, deployment} {
		if err := e.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	g := gomega.NewWithT(t)
	g.Eventually(func() (int32, error) {
		err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)
		return deployment.Status.AvailableReplicas, err
	}).WithTimeout(time.Minute).Should(gomega.BeEquivalentTo(2))
	machines := &v1alpha1.MachineList{}
	if err := e.Client.List(t.Context(), machines, client.InNamespace(e.Namespace)); err != nil {
		t.Fatal(err)
	}
	for _, machine := range machines.Items {
		if !strings.HasPrefix(machine.Spec.ProviderID, "example:///") {
			t.Errorf("machine %s has the VM %q", machine.Name, machine.Spec.ProviderID)
		}
	}
	if err := e.Client.Delete(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	g.Eventually(func() (int, error) {
		err := e.Client.List(t.Context(), machines, client.InNamespace(e.Namespace))
		return len(machines.Items), err
	}).WithTimeout(time.Minute).Should(gomega.BeZero())
}

// buildExample builds the programs of examples/provider without a replace, and returns their folder.
func buildExample(t *testing.T) string {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	source, built := t.TempDir(), t.TempDir()
	if err := os.CopyFS(source, os.DirFS(filepath.Join(root, "examples/provider"))); err != nil {
		t.Fatal(err)
	}
	environment := proxy(t)
	run := func(arguments ...string) {
		command := exec.CommandContext(t.Context(), "go", arguments...)
		command.Dir, command.Env = source, environment
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	for _, replaced := range []string{strings.TrimSuffix(ours, "/"), ours + "api", ours + "client"} {
		run("mod", "edit", "-dropreplace="+replaced)
	}
	run("build", "-trimpath", "-ldflags=-w", "-o", built, ".", "./cmd/cloud")
	if text := read(t, filepath.Join(source, "go.mod")); strings.Contains(text, "replace") && strings.Contains(text, "=>") {
		t.Errorf("go.mod has a replace:\n%s", text)
	}
	return built
}

// start runs a program until the test ends.
func start(t *testing.T, command *exec.Cmd) {
	t.Helper()
	process := program.StartOther(t, command)
	t.Cleanup(func() {
		process.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", fmt.Sprint(command.Args), process.Output.Tail(40))
		}
	})
}
