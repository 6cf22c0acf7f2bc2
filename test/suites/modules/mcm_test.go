package modules

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// mcm is the module that compat/mcm replaces.
const mcm = "github.com/gardener/machine-controller-manager"

// TestMCMProvider_BuildsAndPassesSuite checks that a provider written for MCM can be built with one line in its go.mod, as if
// Millwright were published. With our machine-controller-manager, it passes MCM's integration suite, which it
// imports through the same line. In that suite, a MachineDeployment is scaled, frozen and rolled out.
func TestMCMProvider_BuildsAndPassesSuite(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("unpacks modules of Kubernetes, and starts a control plane")
	}
	t.Parallel()
	built := buildProvider(t)
	e := env.New(t)
	dir := t.TempDir()
	kubeconfig, class, vms := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "class.yaml"), filepath.Join(dir, "vms")
	env.WriteKubeconfig(t, kubeconfig, e.Admin)
	write(t, class, fmt.Sprintf(providerClass, vms, e.Namespace))
	if err := e.Client.Create(t.Context(), fixture.In(e.Namespace, fixture.Named("pool", fixture.Secret()))); err != nil {
		t.Fatal(err)
	}

	access := []string{"--control-kubeconfig=" + kubeconfig, "--target-kubeconfig=" + kubeconfig, "--namespace=" + e.Namespace, "--address=127.0.0.1"}
	sets := program.Command(context.Background(), append(access, "--port=0")...)
	sets.Args[0] = "./machine-controller-manager"
	port, err := e.ControlPlane.PortFor("machine-controller", 0)
	if err != nil {
		t.Fatal(err)
	}
	machines := exec.CommandContext(context.Background(), filepath.Join(built, "machine-controller"), append(access, fmt.Sprintf("--port=%d", port), "--v=2")...)
	provider := runController(t, machines)
	runController(t, sets)

	suite := exec.CommandContext(t.Context(), filepath.Join(built, "controller.test"), "-ginkgo.v")
	suite.Dir = dir
	suite.Env = append(os.Environ(), "CONTROL_KUBECONFIG="+kubeconfig, "CONTROL_CLUSTER_NAMESPACE="+e.Namespace, "MACHINECLASS_V1="+class)
	if out, err := suite.CombinedOutput(); err != nil {
		t.Fatalf("the integration suite: %v\n%s", err, out)
	}
	checkMetrics(t, provider, fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
}

// TestMCMProvider_BuildsWithoutInitializeMachine checks that a driver for older versions of MCM builds with the build tag.
func TestMCMProvider_BuildsWithoutInitializeMachine(t *testing.T) {
	tier.All(t)
	provider := copyModule(t, "examples/mcm-provider")
	provider.run("mod", "edit", "-dropreplace="+mcm, "-replace="+mcm+"="+ours+"compat/mcm@"+version)
	provider.run("test", "-tags=mcm_no_initialize", "-run=^$", "./test/imports")
}

// TestMCMProvider_BecomesAnotherProvider checks the targets of the example's Makefile with which a copy becomes a provider of
// its own and is released.
func TestMCMProvider_BecomesAnotherProvider(t *testing.T) {
	tier.All(t)
	provider := copyModule(t, "examples/mcm-provider")
	docker, called := filepath.Join(t.TempDir(), "docker"), filepath.Join(t.TempDir(), "called")
	write(t, docker, "#!/bin/sh\necho \"$@\" >>"+called+"\n")
	if err := os.Chmod(docker, 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(wantErr string, arguments ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), "make", arguments...)
		command.Dir, command.Env = provider.directory, provider.environment
		out, err := command.CombinedOutput()
		if (err == nil) != (wantErr == "") || !strings.Contains(string(out), wantErr) {
			t.Fatalf("%v: %v, want %q\n%s", command, err, wantErr, out)
		}
	}
	run("PROVIDER_NAME", "rename-project", "PROJECT_NAME=acme", "PROVIDER_NAME=a/b")
	run("PROJECT_NAME", "rename-project", "PROVIDER_NAME=Boxes")
	run("", "rename-project", "PROJECT_NAME=acme", "PROVIDER_NAME=Boxes", "MILLWRIGHT_VERSION="+version)
	run("already renamed", "rename-project", "PROJECT_NAME=acme", "PROVIDER_NAME=Boxes")
	provider.run("mod", "tidy")
	provider.run("vet", "./...")
	if text := provider.mod(); !strings.Contains(text, "module github.com/acme/machine-controller-manager-provider-boxes\n") || strings.Contains(text, "../..") {
		t.Errorf("go.mod is\n%s", text)
	}
	if class := read(t, filepath.Join(provider.directory, "kubernetes", "machine-class.yaml")); !strings.Contains(class, "provider: boxes\n") {
		t.Errorf("the class is\n%s", class)
	}
	run("IMAGE_REPOSITORY is required", "release", "DOCKER="+docker)
	run("", "release", "DOCKER="+docker, "IMAGE_REPOSITORY=registry.example.org/mc", "IMAGE_TAG=v1")
	if got, want := read(t, called), "build -t registry.example.org/mc:v1 .\npush registry.example.org/mc:v1\n"; got != want {
		t.Errorf("docker was called with\n%s", got)
	}
}

// TestMCMProvider_BuildsWithOldGenproto checks that a provider can be built if one of its dependencies requires
// google.golang.org/genproto in a version that contains packages which are modules of their own now.
func TestMCMProvider_BuildsWithOldGenproto(t *testing.T) {
	tier.All(t)
	provider := copyModule(t, "examples/mcm-provider")
	write(t, filepath.Join(provider.directory, "main.go"), "package main\n\nimport _ \"google.golang.org/genproto/googleapis/rpc/status\"\n\nfunc main() {}\n")
	provider.run("mod", "edit", "-dropreplace="+mcm, "-replace="+mcm+"="+ours+"compat/mcm@"+version,
		"-require=google.golang.org/genproto@v0.0.0-20211118181313-81c1377c94b1")
	provider.run("mod", "tidy")
	provider.run("build", "-o", os.DevNull, ".")
}

// providerClass has the directory of the VMs, and the namespace of the Secret.
const providerClass = `
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: any}
provider: folder
providerSpec:
  folder: %s
  size: small
  tags: {kubernetes.io/cluster/example: "1", kubernetes.io/role/node: "1"}
secretRef: {name: pool, namespace: %s}
`

// buildProvider builds the controller of examples/mcm-provider and its integration suite, and returns their
// directory.
func buildProvider(t *testing.T) string {
	t.Helper()
	provider, built := copyModule(t, "examples/mcm-provider"), t.TempDir()
	provider.run("mod", "edit", "-dropreplace="+mcm, "-replace="+mcm+"="+ours+"compat/mcm@"+version)
	provider.run("build", "-ldflags=-w", "-o", built, "./cmd/machine-controller")
	provider.run("test", "-ldflags=-w", "-c", "-o", built, "./test/integration/controller")
	if lines := strings.Count(provider.mod(), "\nreplace "); lines != 1 {
		t.Errorf("go.mod has %d replace lines", lines)
	}
	return built
}

// runController runs a process until the end of the test.
func runController(t *testing.T, command *exec.Cmd) *program.Process {
	t.Helper()
	process := program.StartOther(t, command)
	t.Cleanup(func() {
		process.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", command.Args[0], process.Output.Tail(60))
		}
	})
	return process
}

var vmCreated = regexp.MustCompile(`VM \S+ was created for machine`)

// checkMetrics checks that the provider's metrics are served at the manager's /metrics, that each call is counted
// once, and that the provider logs each creation with klog.
func checkMetrics(t *testing.T, provider *program.Process, url string) {
	t.Helper()
	families := scrape(t, url)
	created := len(vmCreated.FindAllString(provider.Output.String(), -1))
	if got := creations(families["mcm_cloud_api_driver_request_duration_seconds"]); created == 0 || got != uint64(created) {
		t.Errorf("%d calls of CreateMachine, want %d, as the driver logged", got, created)
	}
	for _, name := range []string{"mcm_cloud_api_requests_total", "mcm_cloud_api_driver_requests_failed_total"} {
		for _, metric := range families[name].GetMetric() {
			if label(metric, "provider") != "folder" {
				t.Errorf("%s is also recorded by another one than the provider: %v", name, metric)
			}
		}
	}
	for _, name := range []string{"mcm_workqueue_adds_total", "rest_client_requests_total", "mcm_machine_items_total", "folder_nodes_total"} {
		if families[name] == nil {
			t.Errorf("/metrics has no %s", name)
		}
	}
}

// scrape reads metrics.
func scrape(t *testing.T, url string) map[string]*dto.MetricFamily {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// creations returns the number of calls of CreateMachine.
func creations(family *dto.MetricFamily) uint64 {
	var all uint64
	for _, metric := range family.GetMetric() {
		if label(metric, "operation") == "create_machine" {
			all += metric.GetHistogram().GetSampleCount()
		}
	}
	return all
}

func label(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}
