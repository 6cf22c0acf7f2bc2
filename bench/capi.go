package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/capicore"
	"github.com/millwright-dev/millwright/test/support/env"
)

// clusterAPI is Cluster API. Its core creates and deletes Machines and their MillwrightMachines. millwright manager creates
// and deletes the VMs of MillwrightMachines.
var clusterAPI = api{
	command:     clusterAPICommand,
	phases:      []string{scaleUp, rollingUpdate, idle, restart, scaleDown},
	budgets:     clusterAPIBudgets,
	declare:     (*setup).declareClusterAPI,
	ready:       (*setup).awaitConnection,
	acted:       (*setup).awaitWrite,
	machines:    func() client.ObjectList { return listOf("Machine") },
	deployments: func() client.ObjectList { return listOf("MachineDeployment") },
	deployment:  func() client.Object { return objectOf("MachineDeployment") },
	replacement: `{"spec":{"template":{"spec":{"infrastructureRef":{"name":"` + secondClass + `"}}}}}`,
	stateOf: func(object client.Object) (machineState, bool) {
		machine, ok := object.(*unstructured.Unstructured)
		if !ok {
			return machineState{}, false
		}
		leaving := machine.GetDeletionTimestamp() != nil
		node, _, _ := unstructured.NestedString(machine.Object, "status", "nodeRef", "name")
		return machineState{
			pool: client.ObjectKey{Namespace: machine.GetNamespace(), Name: machine.GetLabels()["cluster.x-k8s.io/deployment-name"]},
			node: node, leaving: leaving, available: !leaving && isTrue(machine, "Available"),
		}, true
	},
	isDone: func(object client.Object, machines int32) bool {
		d, ok := object.(*unstructured.Unstructured)
		if !ok || number(d, "observedGeneration") < d.GetGeneration() {
			return false
		}
		for _, field := range []string{"replicas", "upToDateReplicas", "availableReplicas"} {
			if number(d, field) != int64(machines) {
				return false
			}
		}
		return true
	},
}

// clusterAPICommand runs this project's manager like defaultCommand.
const clusterAPICommand = "exec {millwright} manager --apis capi --driver sim --sim-heartbeat 0 --leader-elect=false" +
	" --sim-dir {sim} --control-kubeconfig {kubeconfig} --target-kubeconfig {target-kubeconfig} --namespace {namespace}" +
	" --kube-api-qps {qps} --kube-api-burst {burst} --address 127.0.0.1 --port {port} --profiling"

// clusterAPIBudgets are 20 % above a measurement with 50 Machines, because the number of conflicts with the core varies. They
// do not include requests of the core. While nothing changes, the manager makes no requests.
var clusterAPIBudgets = map[string]budget{
	scaleUp:       {perMachine: 8.5},
	rollingUpdate: {perMachine: 11.2},
	idle:          {inAll: 5},
	restart:       {inAll: 10},
	scaleDown:     {perMachine: 2.5},
}

// coreProgram is the name of the core's process.
const coreProgram = "core"

// clusterName is the name of the Cluster with all pools, and of its infrastructure.
const clusterName = "bench"

// coreVersion is the version in which the benchmark reads and writes the kinds of the core.
var coreVersion = schema.GroupVersion{Group: "cluster.x-k8s.io", Version: "v1beta2"}

func objectOf(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(coreVersion.WithKind(kind))
	return object
}

func listOf(kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(coreVersion.WithKind(kind + "List"))
	return list
}

// number returns a number of the status, or 0.
func number(object *unstructured.Unstructured, field string) int64 {
	n, _, _ := unstructured.NestedInt64(object.Object, "status", field)
	return n
}

// isTrue reports whether a condition is true.
func isTrue(object *unstructured.Unstructured, condition string) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range conditions {
		if entry, ok := entry.(map[string]any); ok && entry["type"] == condition {
			return entry["status"] == "True"
		}
	}
	return false
}

//go:embed capicluster.yaml
var clusterManifest string

//go:embed capideployment.yaml
var deploymentManifest string

// declareClusterAPI starts the core, and creates a Cluster whose nodes join the API server itself.
func (w *setup) declareClusterAPI(ctx context.Context) error {
	if err := w.startCore(ctx); err != nil {
		return fmt.Errorf("cannot start the core of Cluster API: %w", err)
	}
	if err := w.serveManager(); err != nil {
		return fmt.Errorf("cannot serve the proxy of the manager: %w", err)
	}
	kubeconfig, err := os.ReadFile(w.cp.Kubeconfig())
	if err != nil {
		return err
	}
	quoted, err := json.Marshal(string(kubeconfig)) // also a string in YAML
	if err != nil {
		return err
	}
	spec, err := w.load.spec(namespace)
	if err != nil {
		return err
	}
	err = w.apply(ctx, clusterManifest, map[string]string{
		"NAMESPACE": namespace, "CLUSTER": clusterName, "KUBECONFIG": string(quoted), "PORT": strconv.Itoa(w.cp.Port()),
		"FIRST": firstClass, "SECOND": secondClass, "PROVIDERSPEC": string(spec),
	})
	if err != nil {
		return err
	}
	for _, p := range w.pools {
		err := w.apply(ctx, deploymentManifest, map[string]string{
			"POOL": p.Name, "CLUSTER": clusterName, "TEMPLATE": firstClass, "SURGE": w.load.surge, "UNAVAILABLE": w.load.unavailable,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// startCore starts the core as an administrator, because its ClusterRoles are not aggregated without a controller manager.
func (w *setup) startCore(ctx context.Context) error {
	if err := capicore.InstallStubs(ctx, w.cp.RESTConfig()); err != nil {
		return err
	}
	return capicore.Core{
		Version: capicore.Newest, User: "capi-core", Groups: []string{"system:masters"}, Features: "ClusterTopology=true",
		Flags: []string{"--kube-api-qps", strconv.Itoa(w.options.manager.qps), "--kube-api-burst", strconv.Itoa(w.options.manager.burst)},
	}.Start(ctx, w.cp)
}

// apply applies a manifest, in which it expands variables.
func (w *setup) apply(ctx context.Context, manifest string, variables map[string]string) error {
	text := os.Expand(manifest, func(name string) string { return variables[name] })
	return controlplane.ApplyText(ctx, w.client, []byte(text), namespace)
}

// serveManager starts a proxy between the manager and the API server. The proxy counts the manager's requests, because the
// API server's metrics do not distinguish them from those of the core.
func (w *setup) serveManager() (err error) {
	access := w.cp.RESTConfig()
	w.counted = &clientRequests{}
	w.counted.reset()
	access.Wrap(w.counted.wrap)
	if w.proxy, err = serveProxy(access, func(next http.Handler) http.Handler { return next }); err != nil {
		return err
	}
	kubeconfig, err := w.proxy.kubeconfig("bench", "")
	if err != nil {
		return err
	}
	w.kubeconfig = filepath.Join(w.dir, "manager.kubeconfig")
	return os.WriteFile(w.kubeconfig, kubeconfig, 0o600)
}

// awaitConnection waits until the core has connected to the cluster. Until then, no Machine can become available.
func (w *setup) awaitConnection(ctx context.Context) error {
	return await(ctx, time.Second, func() (bool, error) {
		cluster := objectOf("Cluster")
		err := w.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: clusterName}, cluster)
		return isTrue(cluster, "RemoteConnectionProbe"), err
	})
}

// awaitWrite waits until the manager has written an object. The manager writes nothing while all Machines are complete, so
// its first write is for the additional Machine that the core creates.
func (w *setup) awaitWrite(ctx context.Context, _ int) error {
	before := w.counted.counts()
	return await(ctx, 10*time.Millisecond, func() (bool, error) {
		for request := range w.counted.counts().Since(before) {
			if request.Method == http.MethodPatch && request.Kind() == env.Work {
				return true, nil
			}
		}
		return false, nil
	})
}
