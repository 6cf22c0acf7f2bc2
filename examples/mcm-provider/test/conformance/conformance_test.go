// Package conformance checks that the driver follows the contract that Millwright's controllers rely on. It is the
// only package in this module that imports Millwright by name.
package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/conformance"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/millwright-dev/millwright/examples/mcm-provider/pkg/folder"
)

// nodes is a cluster that any node may join.
type nodes struct{ typedcorev1.NodeInterface }

func (nodes) Create(_ context.Context, node *corev1.Node, _ metav1.CreateOptions) (*corev1.Node, error) {
	return node, nil
}

func (nodes) UpdateStatus(_ context.Context, node *corev1.Node, _ metav1.UpdateOptions) (*corev1.Node, error) {
	return node, nil
}

func class(vms, size string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}, Provider: folder.Provider,
		ProviderSpec: runtime.RawExtension{Raw: fmt.Appendf(nil,
			`{"folder":%q,"size":%q,"tags":{"kubernetes.io/cluster/example":"1","kubernetes.io/role/node":"1"}}`, vms, size)},
	}
}

// TestConformance: the driver follows the contract. Each rule is a subtest.
func TestConformance(t *testing.T) {
	vms := t.TempDir()
	withoutDirectory, volume := class("", "small"), "folder-1"
	open := func() (driver.Driver, error) { return folder.NewDriver(nodes{}), nil }
	conformance.Run(t, func(*testing.T) conformance.Provider {
		return conformance.Provider{
			Driver: folder.NewDriver(nodes{}), Class: class(vms, "small"), Uninitialized: true,
			Secret: &corev1.Secret{Data: map[string][]byte{"userData": []byte("#!/bin/sh")}},
			Variants: conformance.Variants{
				Changed: class(vms, "large"),
				Classes: map[conformance.Refusal]*v1alpha1.MachineClass{conformance.Invalid: withoutDirectory},
				Volumes: map[string]*corev1.PersistentVolumeSpec{volume: {PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: "folder.example.org", VolumeHandle: volume},
				}}},
			},
			Hooks: conformance.Hooks{Restart: open, Instances: func(context.Context) ([]string, error) { return instances(vms) }},
		}
	})
}

// instances returns the IDs of all VMs in a directory.
func instances(vms string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(vms, "*"+folder.Extension))
	var ids []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		_, rest, _ := strings.Cut(string(content), `"id":"`)
		id, _, _ := strings.Cut(rest, `"`)
		ids = append(ids, "folder:///"+id)
	}
	return ids, err
}
