package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/fleet"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
)

// setup is the control plane of a benchmark with the manager.
type setup struct {
	options
	log func(format string, args ...any)
	cp  *controlplane.ControlPlane
	// client is a client without a cache.
	client client.WithWatch
	server rest.Interface
	// api is the measured API.
	api api
	// own counts the requests that the benchmark itself makes during the measurement. They are subtracted from the requests
	// in the API server's metrics. It stays empty if counted is used instead.
	own clientRequests
	// counted counts the requests of the manager if it uses proxy. Otherwise, both are nil.
	counted *clientRequests
	proxy   *proxy
	// kubeconfig is the path of the manager's kubeconfig.
	kubeconfig string
	// pools are all deployments.
	pools []pool
	// manager is nil unless it is running.
	manager *process
	// tracker is nil until the manager is started.
	tracker *tracker
	// targets is nil unless a fleet is measured.
	targets *targets
	// acted is how long the manager that a phase started took until it carried out a change.
	acted time.Duration
}

// newSetup starts a control plane and creates the deployments, without Machines.
func newSetup(ctx context.Context, o options, log func(string, ...any)) (*setup, error) {
	cp, err := env.Start(filepath.Join(o.dir, "controlplane"), logr.Discard())
	if err != nil {
		return nil, err
	}
	w := &setup{options: o, log: log, cp: cp, api: apis[o.api], kubeconfig: cp.Kubeconfig(), pools: o.load.allPools()}
	w.own.reset()
	if err = w.connect(); err == nil {
		err = w.api.declare(w, ctx)
	}
	if err == nil {
		err = w.populate(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.end())
	}
	return w, nil
}

func (w *setup) connect() error {
	access := w.cp.RESTConfig()
	access.UserAgent = "millwright-bench"
	if w.options.api == mcm {
		access.Wrap(w.own.wrap)
	}
	var err error
	if w.client, err = client.NewWithWatch(access, client.Options{Scheme: env.NewScheme()}); err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(access)
	if err == nil {
		w.server = clients.Discovery().RESTClient()
	}
	return err
}

// end stops everything that is running.
func (w *setup) end() error {
	var err error
	if w.manager != nil {
		err = w.stop()
	}
	if w.targets != nil {
		err = errors.Join(err, w.targets.stop())
	}
	if w.proxy != nil {
		err = errors.Join(err, w.proxy.stop())
	}
	return errors.Join(err, w.cp.Stop(context.Background()))
}

// The two classes. The rolling update changes the deployments from the first to the second.
const (
	firstClass  = "bench"
	secondClass = "bench-2"
)

// declareMCM creates the deployments, their classes and, for a fleet, the target clusters.
func (w *setup) declareMCM(ctx context.Context) error {
	if w.load.clusters > 0 { // the leases of the fleet itself
		if err := w.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
			return err
		}
	}
	for _, name := range w.load.namespaces() {
		if err := w.declareNamespace(ctx, name); err != nil {
			return err
		}
	}
	for _, p := range w.pools {
		if err := w.client.Create(ctx, w.deployment(p)); err != nil {
			return err
		}
	}
	return w.declareTargets(ctx)
}

// declareNamespace creates a namespace and its classes. A fleet serves it.
func (w *setup) declareNamespace(ctx context.Context, name string) error {
	spec, err := w.load.spec(name)
	if err != nil {
		return err
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{fleet.Prefix + "serve": "true"}}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: name}},
	}
	for _, of := range []string{firstClass, secondClass} {
		objects = append(objects, secret(name, of), class(name, of, spec))
	}
	for _, object := range objects {
		if err := w.client.Create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// spec returns the providerSpec of the classes of a namespace.
func (l load) spec(namespace string) ([]byte, error) {
	if l.providerSpec != "" {
		if !json.Valid([]byte(l.providerSpec)) {
			return nil, errors.New("--provider-spec is not valid JSON")
		}
		return []byte(l.providerSpec), nil
	}
	spec := map[string]any{"latency": l.latency.String(), "joinDelay": l.joinDelay.String()}
	if l.clusters > 0 {
		spec["nodeLabels"] = map[string]string{clusterLabel: namespace}
	}
	return json.Marshal(spec)
}

func secret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string][]byte{"userData": []byte("token: <<BOOTSTRAP_TOKEN>>")},
	}
}

func class(namespace, name string, spec []byte) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: namespace, Name: name},
		Provider:     "sim",
		ProviderSpec: runtime.RawExtension{Raw: spec},
		SecretRef:    &corev1.SecretReference{Namespace: namespace, Name: name},
		// MCM requires a node template.
		NodeTemplate: &v1alpha1.NodeTemplate{
			InstanceType: "large", Region: "here", Zone: "here-1",
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi"),
				"gpu": resource.MustParse("0"), // required, to scale from zero
			},
		},
	}
}

// deployment returns the deployment of a pool, without Machines.
func (w *setup) deployment(p pool) *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": p.Name}
	return &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		Spec: v1alpha1.MachineDeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: machineSpec()},
			Strategy: v1alpha1.MachineDeploymentStrategy{
				Type: v1alpha1.RollingUpdateMachineDeploymentStrategyType,
				RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{
					MaxSurge: ptr.To(intstr.Parse(w.load.surge)), MaxUnavailable: ptr.To(intstr.Parse(w.load.unavailable)),
				}},
			},
		},
	}
}

func machineSpec() v1alpha1.MachineSpec {
	return v1alpha1.MachineSpec{
		Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: firstClass},
		NodeTemplateSpec: v1alpha1.NodeTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": label}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Value: label, Effect: corev1.TaintEffectNoSchedule}}},
		},
	}
}

// workers is the number of concurrent requests of inParallel.
const workers = 50

func inParallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i := range n {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return do(ctx, i)
		})
	}
	return group.Wait()
}

// await repeats a check at an interval until it returns true.
func await(ctx context.Context, interval time.Duration, check func() (bool, error)) error {
	err := wait.PollUntilContextCancel(ctx, interval, true, func(context.Context) (bool, error) { return check() })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// pause waits for the given duration.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const (
	// podsPerNode is the limit of a kubelet.
	podsPerNode = 110
	// podsPerApp is the number of pods that differ only in their names.
	podsPerApp = 10
)

// otherNodes returns the number of nodes without a Machine. All pods are on these nodes.
func (l load) otherNodes() int { return (l.pods + podsPerNode - 1) / podsPerNode }

// populate creates nodes without a Machine, and their pods, before the measurement.
func (w *setup) populate(ctx context.Context) error {
	began := time.Now()
	if err := inParallel(ctx, w.load.otherNodes(), func(ctx context.Context, i int) error { return w.client.Create(ctx, node(i)) }); err != nil {
		return fmt.Errorf("cannot create nodes: %w", err)
	}
	if err := inParallel(ctx, w.load.pods, func(ctx context.Context, i int) error { return w.client.Create(ctx, pod(i)) }); err != nil {
		return fmt.Errorf("cannot create pods: %w", err)
	}
	w.log("created %d pods on %d nodes in %.1f s", w.load.pods, w.load.otherNodes(), time.Since(began).Seconds())
	return nil
}

func otherNode(i int) string { return fmt.Sprintf("other-%d", i) }

// node has the annotation that managers add to nodes without a Machine after some time. Otherwise, a long
// measurement would count these requests.
func node(i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: otherNode(i), Annotations: map[string]string{v1alpha1.AnnotationKeyNotManaged: "1"},
	}}
}

// pod resembles the pod of an ordinary application, with a sidecar, settings and mounts: about 3 KiB of JSON before
// the API server adds its own fields.
func pod(i int) *corev1.Pod {
	app := fmt.Sprintf("app-%d", i/podsPerApp)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-6d5f9c7b8-%d", app, i),
			Labels: map[string]string{
				"app.kubernetes.io/name": app, "app.kubernetes.io/instance": "production", "pod-template-hash": "6d5f9c7b8",
			},
			Annotations: map[string]string{
				"checksum/config":      "0f343b0931126a20f133d67c2b018a3b5e7c1c4ad8d5d5a3b6c7d8e9f0a1b2c3",
				"prometheus.io/scrape": "true", "prometheus.io/port": "9090",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-6d5f9c7b8",
				UID: types.UID(fmt.Sprintf("5b0e6f6a-7d5c-4a53-9f3b-%012d", i/podsPerApp)), Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName:   otherNode(i / podsPerNode),
			Containers: []corev1.Container{container("main", app), container("sidecar", app)},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: app}}}},
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-" + app}}},
			},
			Tolerations: []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpEqual, Value: "applications", Effect: corev1.TaintEffectNoSchedule}},
		},
	}
}

func container(name, app string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "registry.example/" + app + "/" + name + ":v1.27.3", Args: []string{"--config=/etc/app/config.yaml", "--log-level=info"},
		Env: environment(),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: "/etc/app", ReadOnly: true}, {Name: "scratch", MountPath: "/tmp"}, {Name: "data", MountPath: "/var/lib/app"},
		},
	}
}

// environment of a container: the largest part of a pod, which a manager need not cache.
func environment() []corev1.EnvVar {
	vars := make([]corev1.EnvVar, 10)
	for i := range vars {
		vars[i] = corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: "the value of a setting of an application"}
	}
	return vars
}
