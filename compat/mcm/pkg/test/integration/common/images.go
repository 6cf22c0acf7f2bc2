package common

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// images are the images of the controllers in a Deployment of the control cluster. The suite does not restore the
// old images.
type images struct {
	// deployment is the name of the Deployment.
	deployment string
	// manager is the image of managerContainer; machines is the image of all other containers. If empty, the image
	// does not change.
	manager, machines string
}

// managerContainer is the container with the controllers of MachineSets and MachineDeployments.
const managerContainer = "machine-controller-manager"

func (i images) given() bool { return i.manager != "" || i.machines != "" }

// set sets the images in the Deployment. It returns an error if the Deployment has no container for an image.
func (i images) set(deployment *appsv1.Deployment) error {
	if i.manager != "" && !setImage(deployment, i.manager, true) {
		return fmt.Errorf("no container of Deployment %s is for the image %s", deployment.Name, i.manager)
	}
	if i.machines != "" && !setImage(deployment, i.machines, false) {
		return fmt.Errorf("no container of Deployment %s is for the image %s", deployment.Name, i.machines)
	}
	return nil
}

// setImage sets the image of the manager or of all other containers, and reports whether such a container exists.
func setImage(deployment *appsv1.Deployment, image string, manages bool) (found bool) {
	containers := deployment.Spec.Template.Spec.Containers
	for n := range containers {
		if (containers[n].Name == managerContainer) == manages {
			containers[n].Image, found = image, true
		}
	}
	return found
}

// rolledOut reports whether all Pods of a Deployment are up to date and available.
func rolledOut(deployment *appsv1.Deployment) bool {
	want, status := int32(1), deployment.Status
	if deployment.Spec.Replicas != nil {
		want = *deployment.Spec.Replicas
	}
	return status.ObservedGeneration >= deployment.Generation &&
		status.Replicas == want && status.UpdatedReplicas == want && status.AvailableReplicas == want
}

// deploy sets the images and waits for the Pods. If the Deployment does not exist, it is created from the
// provider's kubernetes/deployment.yaml.
func (f *IntegrationTestFramework) deploy(i images) {
	ginkgo.GinkgoHelper()
	if !i.given() {
		return
	}
	err := f.control.Get(context.Background(), f.deploymentKey(), &appsv1.Deployment{})
	expect(client.IgnoreNotFound(err))
	if err != nil {
		deployment, err := i.read(filepath.Join(root, "kubernetes", "deployment.yaml"))
		expect(err)
		deployment.Namespace = f.env.namespace
		expect(f.control.Create(context.Background(), deployment))
	}
	f.changeDeployment(func(deployment *appsv1.Deployment) { expect(i.set(deployment)) })
	f.eventually(func(g gomega.Gomega) {
		deployment := &appsv1.Deployment{}
		g.Expect(f.control.Get(context.Background(), f.deploymentKey(), deployment)).To(gomega.Succeed())
		g.Expect(rolledOut(deployment)).To(gomega.BeTrue(), "Deployment %s has not rolled out: %+v", i.deployment, deployment.Status)
	})
}

// read returns the Deployment in a file, with the images set and with the configured name.
func (i images) read(file string) (*appsv1.Deployment, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the file to create the missing Deployment %s from: %w", i.deployment, err)
	}
	deployment := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(text, deployment); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	deployment.Name = i.deployment
	return deployment, i.set(deployment)
}
