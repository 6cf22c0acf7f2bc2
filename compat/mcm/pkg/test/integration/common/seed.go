package common

import (
	"context"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ignoreScaling is an annotation that keeps Gardener's dependency watchdog from scaling a Deployment.
const ignoreScaling = "dependency-watchdog.gardener.cloud/ignore-scaling"

// suspend scales down the controllers of a seed if the suite starts others.
func (f *IntegrationTestFramework) suspend() {
	ginkgo.GinkgoHelper()
	if !f.env.seed || f.env.virtual || len(f.env.commands) == 0 {
		return
	}
	f.replicas = new(int32)
	f.changeDeployment(func(deployment *appsv1.Deployment) {
		*f.replicas = 1
		if suspended := deployment.Annotations[ignoreScaling] == "true"; deployment.Spec.Replicas != nil && !suspended {
			*f.replicas = *deployment.Spec.Replicas // otherwise, an earlier run was not cleaned up
		}
		scale(deployment, 0)
		if deployment.Annotations == nil {
			deployment.Annotations = map[string]string{}
		}
		deployment.Annotations[ignoreScaling] = "true"
	})
	f.eventually(func(g gomega.Gomega) {
		deployment := &appsv1.Deployment{}
		g.Expect(f.control.Get(context.Background(), f.deploymentKey(), deployment)).To(gomega.Succeed())
		g.Expect(rolledOut(deployment)).To(gomega.BeTrue(), "Deployment %s still has Pods", deployment.Name)
	})
}

// resume restores the replicas of the Deployment.
func (f *IntegrationTestFramework) resume() {
	ginkgo.GinkgoHelper()
	if f.replicas == nil {
		return
	}
	f.changeDeployment(func(deployment *appsv1.Deployment) {
		scale(deployment, *f.replicas)
		delete(deployment.Annotations, ignoreScaling)
	})
	f.replicas = nil
}

func scale(deployment *appsv1.Deployment, replicas int32) { deployment.Spec.Replicas = &replicas }

func (f *IntegrationTestFramework) deploymentKey() client.ObjectKey {
	return client.ObjectKey{Namespace: f.env.namespace, Name: f.env.images.deployment}
}

// changeDeployment changes the Deployment of the controllers. Others may also write it.
func (f *IntegrationTestFramework) changeDeployment(change func(*appsv1.Deployment)) {
	ginkgo.GinkgoHelper()
	f.eventually(func(g gomega.Gomega) {
		deployment := &appsv1.Deployment{}
		g.Expect(f.control.Get(context.Background(), f.deploymentKey(), deployment)).To(gomega.Succeed())
		change(deployment)
		g.Expect(f.control.Update(context.Background(), deployment)).To(gomega.Succeed())
	})
}
