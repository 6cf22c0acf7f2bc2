package common

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
)

// environment is what the suite works with.
type environment struct {
	// control and target are kubeconfigs.
	control, target    string
	namespace, cluster string
	// firstClass and secondClass are files.
	firstClass, secondClass string
	// commands of the controllers, by the names of their logs.
	commands map[string]string
}

func fromEnvironment() (environment, error) {
	e := environment{
		control:    os.Getenv("CONTROL_KUBECONFIG"),
		namespace:  cmp.Or(os.Getenv("CONTROL_CLUSTER_NAMESPACE"), "default"),
		cluster:    os.Getenv("TARGET_CLUSTER_NAME"),
		firstClass: os.Getenv("MACHINECLASS_V1"),
		commands:   map[string]string{},
	}
	e.target = cmp.Or(os.Getenv("TARGET_KUBECONFIG"), e.control)
	e.secondClass = cmp.Or(os.Getenv("MACHINECLASS_V2"), e.firstClass)
	for name, variable := range map[string]string{"mc_process.log": "MC_COMMAND", "mcm_process.log": "MCM_COMMAND"} {
		if command := os.Getenv(variable); command != "" {
			e.commands[name] = command
		}
	}
	if e.control == "" {
		return e, errors.New("CONTROL_KUBECONFIG is required: the kubeconfig of the cluster with the Machines")
	}
	if e.firstClass == "" {
		return e, errors.New("MACHINECLASS_V1 is required: a file with a MachineClass")
	}
	return e, nil
}

// connect returns a client for a cluster.
func connect(kubeconfig string) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// createClass creates a MachineClass from a file, under another name. One of an earlier run is changed.
func (f *IntegrationTestFramework) createClass(name, file string) *v1alpha1.MachineClass {
	ginkgo.GinkgoHelper()
	class := &v1alpha1.MachineClass{}
	text, err := os.ReadFile(file)
	expect(err)
	expect(yaml.UnmarshalStrict(text, class))
	if class.SecretRef == nil {
		expect(fmt.Errorf("%s: secretRef is required", file))
	}
	class.Name, class.Namespace = name, f.env.namespace
	old := &v1alpha1.MachineClass{}
	err = f.control.Get(context.Background(), client.ObjectKeyFromObject(class), old)
	if err != nil {
		expect(client.IgnoreNotFound(err))
		expect(f.control.Create(context.Background(), class))
		return class
	}
	class.ObjectMeta = old.ObjectMeta
	expect(f.control.Update(context.Background(), class))
	return class
}

// secretOf returns the data of the Secret of a class.
func (f *IntegrationTestFramework) secretOf(class *v1alpha1.MachineClass) map[string][]byte {
	ginkgo.GinkgoHelper()
	secret := &corev1.Secret{}
	expect(f.control.Get(context.Background(), client.ObjectKey{Namespace: class.SecretRef.Namespace, Name: class.SecretRef.Name}, secret))
	return secret.Data
}
