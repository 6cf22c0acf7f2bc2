package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/env"
)

// setup is the control plane of a benchmark, and the manager.
type setup struct {
	options
	log func(format string, args ...any)
	cp  *controlplane.ControlPlane
	// client reads from the API server.
	client client.WithWatch
	server rest.Interface
	// own are the requests of the benchmark itself while it measures.
	own env.Totals
	// manager is nil until it runs.
	manager *process
}

// namespace of the manager's objects.
const namespace = "bench"

// newSetup starts a control plane and creates a deployment without Machines.
func newSetup(ctx context.Context, o options, log func(string, ...any)) (*setup, error) {
	cp, err := env.Start(filepath.Join(o.dir, "controlplane"), logr.Discard())
	if err != nil {
		return nil, err
	}
	w := &setup{options: o, log: log, cp: cp, own: env.Totals{}}
	if err := errors.Join(w.connect(), w.declare(ctx)); err != nil {
		return nil, errors.Join(err, w.end())
	}
	return w, nil
}

func (w *setup) connect() error {
	access := w.cp.RESTConfig()
	access.UserAgent = "millwright-bench"
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

// end ends everything that runs.
func (w *setup) end() error {
	var err error
	if w.manager != nil {
		err = w.manager.stop()
	}
	return errors.Join(err, w.cp.Stop(context.Background()))
}

// The two classes, of which the rolling update leads from one to the other.
const (
	firstClass  = "bench"
	secondClass = "bench-2"
	pool        = "bench"
)

func (w *setup) declare(ctx context.Context) error {
	if w.client == nil {
		return nil // connect failed
	}
	spec, err := w.load.spec()
	if err != nil {
		return err
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: namespace}},
	}
	for _, name := range []string{firstClass, secondClass} {
		objects = append(objects, secret(name), class(name, spec))
	}
	objects = append(objects, w.deployment())
	for _, object := range objects {
		if err := w.client.Create(ctx, object); err != nil {
			return err
		}
	}
	return w.populate(ctx)
}

// spec returns the providerSpec of the classes.
func (l load) spec() ([]byte, error) {
	if l.providerSpec != "" {
		if !json.Valid([]byte(l.providerSpec)) {
			return nil, errors.New("--provider-spec: is no JSON")
		}
		return []byte(l.providerSpec), nil
	}
	return json.Marshal(map[string]string{"latency": l.latency.String(), "joinDelay": l.joinDelay.String()})
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string][]byte{"userData": []byte("token: <<BOOTSTRAP_TOKEN>>")},
	}
}

func class(name string, spec []byte) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: namespace, Name: name},
		Provider:     "sim",
		ProviderSpec: runtime.RawExtension{Raw: spec},
		SecretRef:    &corev1.SecretReference{Namespace: namespace, Name: name},
		// MCM requires it.
		NodeTemplate: &v1alpha1.NodeTemplate{
			InstanceType: "large", Region: "here", Zone: "here-1",
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi"),
				"gpu": resource.MustParse("0"), // required, to scale from zero
			},
		},
	}
}

func (w *setup) deployment() *v1alpha1.MachineDeployment {
	labels := map[string]string{"name": pool}
	return &v1alpha1.MachineDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pool},
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
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": pool}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Value: pool, Effect: corev1.TaintEffectNoSchedule}}},
		},
	}
}

// workers is how many requests inParallel makes at the same time.
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

// await waits until a check, which is repeated at an interval, holds.
func await(ctx context.Context, interval time.Duration, check func() (bool, error)) error {
	err := wait.PollUntilContextCancel(ctx, interval, true, func(context.Context) (bool, error) { return check() })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// pause waits for a time.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
