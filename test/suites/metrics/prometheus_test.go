package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// quiet are parts of the dashboard's queries that have no data while nothing fails.
var quiet = []string{
	"mcm_machine_deployment_failed_machines", "mcm_machine_num_failed_join", "mcm_cloud_api_driver_requests_failed_total",
	"mcm_machine_stale_machines_total", "mcm_misc_scrape_failure_total", "mcm_workqueue_retries_total",
}

// TestDashboard_QueriesReturnData runs each query of the dashboard and each alert rule in a Prometheus that scrapes a
// manager with simulated machines.
func TestDashboard_QueriesReturnData(t *testing.T) {
	tier.All(t)
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	binary, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("Prometheus is not installed; run make prometheus")
	}
	e := env.New(t)
	server := prometheusServer(t, e, binary, manager(t, e))
	pool(t, e)

	g := gomega.NewWithT(t)
	g.Eventually(func() error { return server.get("/-/ready", nil) }).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	for _, query := range queriesOfDashboard(t) {
		query = strings.ReplaceAll(query, "$namespace", e.Namespace+"|other")
		mayBeEmpty := containsAny(query, quiet)
		g.Eventually(func() error {
			var result struct {
				Data struct{ Result []any }
			}
			err := server.get("/api/v1/query?query="+url.QueryEscape(query), &result)
			if err == nil && len(result.Data.Result) == 0 && !mayBeEmpty {
				err = fmt.Errorf("no data for %s", query)
			}
			return err
		}).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
	}
	g.Eventually(server.rules).WithTimeout(env.WaitTimeout).Should(gomega.Succeed())
}

func containsAny(text string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// manager starts a manager of the namespace, and returns the address of its metrics.
func manager(t *testing.T, e *env.Env) string {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	env.WriteKubeconfig(t, kubeconfig, e.Admin)
	port, err := e.ControlPlane.PortFor("manager", 0)
	if err != nil {
		t.Fatal(err)
	}
	starts(t, program.Command(context.Background(), "manager", "--driver=sim", "--namespace="+e.Namespace, "--control-kubeconfig="+kubeconfig,
		"--target-kubeconfig="+kubeconfig, "--address=127.0.0.1", fmt.Sprintf("--port=%d", port)))
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// pool creates machines, and deletes one, so that each operation has a duration.
func pool(t *testing.T, e *env.Env) {
	t.Helper()
	text, err := os.ReadFile(path(t, "examples/sim/pool.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range fixture.Objects(t, []byte(strings.ReplaceAll(string(text), "namespace: default", "namespace: "+e.Namespace))) {
		object.SetNamespace(e.Namespace)
		if err := e.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	deployment := &v1alpha1.MachineDeployment{}
	deployment.Namespace, deployment.Name = e.Namespace, "pool"
	available := func() (int32, error) {
		err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)
		return deployment.Status.AvailableReplicas, err
	}
	g := gomega.NewWithT(t)
	g.Eventually(available).WithTimeout(env.WaitTimeout).Should(gomega.Equal(int32(3)))
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`))
	if err := e.Client.Patch(t.Context(), deployment, patch); err != nil {
		t.Fatal(err)
	}
	g.Eventually(func() (int, error) {
		machines := &v1alpha1.MachineList{}
		err := e.Client.List(t.Context(), machines, client.InNamespace(e.Namespace))
		return len(machines.Items), err
	}).WithTimeout(env.WaitTimeout).Should(gomega.Equal(2))
}

// monitor is the address of a Prometheus.
type monitor string

// prometheusServer starts a Prometheus with the shipped rules, which scrapes a manager.
func prometheusServer(t *testing.T, e *env.Env, binary, target string) monitor {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(path(t, "config/monitoring/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var object struct{ Spec any }
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	rules, err := yaml.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yml]
scrape_configs:
- job_name: millwright
  honor_labels: true
  static_configs: [{targets: [%q]}]
`, target)
	for name, text := range map[string][]byte{"rules.yml": rules, "prometheus.yml": []byte(config)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port, err := e.ControlPlane.PortFor("prometheus", 0)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	starts(t, exec.CommandContext(context.Background(), binary, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address))
	return monitor(address)
}

// starts runs a program until the test has ended.
func starts(t *testing.T, command *exec.Cmd) {
	t.Helper()
	process := program.StartOther(t, command)
	t.Cleanup(func() {
		process.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", command, process.Output.Tail(40))
		}
	})
}

// get sends a request, and decodes the response unless into is nil.
func (m monitor) get(path string, into any) error {
	response, err := http.Get("http://" + string(m) + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// rules returns an error until Prometheus has evaluated all rules without an error.
func (m monitor) rules() error {
	var found struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	if err := m.get("/api/v1/rules", &found); err != nil {
		return err
	}
	count := 0
	for _, group := range found.Data.Groups {
		for _, rule := range group.Rules {
			count++
			if rule.Health != "ok" {
				return fmt.Errorf("alert %s: %s %s", rule.Name, rule.Health, rule.LastError)
			}
		}
	}
	if count < 10 {
		return fmt.Errorf("%d rules", count)
	}
	return nil
}

// queriesOfDashboard returns the expressions of all panels.
func queriesOfDashboard(t *testing.T) (queries []string) {
	t.Helper()
	text, err := os.ReadFile(path(t, "config/monitoring/dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries = append(queries, target.Expr)
		}
	}
	if len(queries) < 20 {
		t.Fatalf("found only %d queries", len(queries))
	}
	return queries
}

// path returns the path of a file of the repository.
func path(t *testing.T, name string) string {
	t.Helper()
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, name)
}
