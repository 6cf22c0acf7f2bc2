// Command clients is an example of the typed clients: it marks the oldest Machine of a MachineDeployment so that it
// is deleted first at the next scale-down.
//
//	go run ./examples/clients --kubeconfig FILE --namespace NAMESPACE --deployment NAME
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	apply "github.com/millwright-dev/millwright/client/applyconfiguration/machine/v1alpha1"
	"github.com/millwright-dev/millwright/client/clientset/versioned"
	"github.com/millwright-dev/millwright/client/informers/externalversions"
	listers "github.com/millwright-dev/millwright/client/listers/machine/v1alpha1"
)

// manager is the owner of the fields that this program applies.
const manager = "example-of-clients"

// errNoMachines means that the deployment has no Machine to mark.
var errNoMachines = errors.New("the deployment has no machines")

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the control cluster")
	namespace := flag.String("namespace", "default", "namespace of the deployment")
	deployment := flag.String("deployment", "", "name of the deployment")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := connect(ctx, *kubeconfig, *namespace, *deployment); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func connect(ctx context.Context, kubeconfig, namespace, deployment string) error {
	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	clients, err := versioned.NewForConfig(access)
	if err != nil {
		return err
	}
	return oldestFirst(ctx, clients, namespace, deployment, os.Stdout)
}

// oldestFirst lists the Machines of a deployment and gives the oldest one the lowest priority, so that it is
// deleted first.
func oldestFirst(ctx context.Context, clients versioned.Interface, namespace, name string, out io.Writer) error {
	deployment, err := clients.MachineV1alpha1().MachineDeployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return err
	}
	machines, stop, err := watched(ctx, clients, namespace)
	if err != nil {
		return err
	}
	defer stop()
	oldest, err := byAge(machines.Machines(namespace), selector)
	if err != nil {
		return err
	}
	for _, machine := range oldest {
		fmt.Fprintf(out, "%s\t%s\n", machine.Name, machine.Status.CurrentStatus.Phase)
	}
	return deleteFirst(ctx, clients, oldest[0], out)
}

// watched returns the Machines of a namespace from a cache, which follows the API server until stop is called.
func watched(ctx context.Context, clients versioned.Interface, namespace string) (listers.MachineLister, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := externalversions.NewSharedInformerFactoryWithOptions(clients, 0, externalversions.WithNamespace(namespace))
	machines := factory.Machine().V1alpha1().Machines()
	synced := machines.Informer().HasSynced
	factory.Start(ctx.Done())
	stop := func() {
		cancel()
		factory.Shutdown()
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		stop()
		return nil, nil, ctx.Err()
	}
	return machines.Lister(), stop, nil
}

// byAge returns the Machines that are not being deleted, oldest first.
func byAge(machines listers.MachineNamespaceLister, selector labels.Selector) ([]*v1alpha1.Machine, error) {
	found, err := machines.List(selector)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(m *v1alpha1.Machine) bool { return m.DeletionTimestamp != nil })
	if len(found) == 0 {
		return nil, errNoMachines
	}
	slices.SortFunc(found, func(a, b *v1alpha1.Machine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return found, nil
}

// deleteFirst applies only one annotation. Other managers keep the fields that they own.
func deleteFirst(ctx context.Context, clients versioned.Interface, machine *v1alpha1.Machine, out io.Writer) error {
	desired := apply.Machine(machine.Name, machine.Namespace).
		WithAnnotations(map[string]string{v1alpha1.AnnotationKeyMachinePriority: "1"})
	_, err := clients.MachineV1alpha1().Machines(machine.Namespace).
		Apply(ctx, desired, metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s will be deleted first\n", machine.Name)
	return nil
}
