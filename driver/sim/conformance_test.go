package sim_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/driver/sim"
)

const conformingSpec = `{"pool":"p","tags":{"kubernetes.io/cluster/shop":"1","kubernetes.io/role/node":"1"}}`

func conformingClass(spec string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "class"}, ProviderSpec: runtime.RawExtension{Raw: []byte(spec)},
	}
}

func TestConformance(t *testing.T) {
	for name, initialize := range map[string]bool{"initialized": false, "with initialization": true} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(t *testing.T) conformance.Provider { return conforming(t, initialize) })
		})
	}
}

// conforming returns a simulated provider to which nearly all rules apply.
func conforming(t *testing.T, initialize bool) conformance.Provider {
	t.Helper()
	cloud := sim.NewCloud(sim.CloudOptions{})
	if err := cloud.SetZones("a", "b"); err != nil {
		t.Fatal(err)
	}
	restart := func() (driver.Driver, error) {
		return sim.New(sim.Config{Cloud: cloud, RequireInitialize: initialize}), nil
	}
	d, _ := restart()
	return conformance.Provider{
		Driver: d, Class: conformingClass(conformingSpec), Secret: &corev1.Secret{Data: map[string][]byte{"userData": []byte("#!/bin/sh")}},
		Uninitialized: initialize,
		Variants: conformance.Variants{
			Changed:      conformingClass(`{"pool":"q"}`),
			Updated:      conformingClass(`{"pool":"p","tags":{"kubernetes.io/cluster/shop":"1","kubernetes.io/role/node":"1","team":"blue"}}`),
			Classes:      map[conformance.Refusal]*v1alpha1.MachineClass{conformance.Invalid: conformingClass(`{"latency":"-1s"}`)},
			OtherAccount: &corev1.Secret{Data: map[string][]byte{"account": []byte("other")}},
			Volumes: map[string]*corev1.PersistentVolumeSpec{"vol-1": {PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "vol-1"},
			}}},
		},
		Hooks: conformance.Hooks{
			Restart:   restart,
			Instances: func(context.Context) ([]string, error) { return idsOf(cloud) },
			Duplicate: func(_ context.Context, namespace, machine string, _ *v1alpha1.MachineClass) error {
				_, err := cloud.Add(sim.VM{Namespace: namespace, Machine: machine, Pool: "p", Tags: map[string]string{
					"kubernetes.io/cluster/shop": "1", "kubernetes.io/role/node": "1",
				}})
				return err
			},
		},
	}
}

func idsOf(cloud *sim.Cloud) (ids []string, err error) {
	vms, err := cloud.VMs()
	for _, vm := range vms {
		ids = append(ids, vm.ProviderID)
	}
	return ids, err
}
