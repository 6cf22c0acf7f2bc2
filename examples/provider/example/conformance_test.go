package example_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/examples/provider/cloud"
	"github.com/millwright-dev/millwright/examples/provider/example"
)

func classOf(spec string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}, Provider: "example", ProviderSpec: runtime.RawExtension{Raw: []byte(spec)},
	}
}

// TestConformance: the driver follows the contract of package driver. Each rule is a subtest.
func TestConformance(t *testing.T) {
	const token = "t0ken-of-the-cloud"
	server := httptest.NewServer(cloud.New(token, 100))
	t.Cleanup(server.Close)
	secret := func(token string) *corev1.Secret {
		return &corev1.Secret{Data: map[string][]byte{"token": []byte(token), "userData": []byte("#!/bin/sh")}}
	}
	open := func() (driver.Driver, error) { return example.New(server.URL) }
	conformance.Run(t, func(t *testing.T) conformance.Provider {
		d, err := open()
		if err != nil {
			t.Fatal(err)
		}
		return conformance.Provider{
			Driver: d, Class: classOf(small), Secret: secret(token),
			Variants: conformance.Variants{
				Changed: classOf(strings.Replace(small, "small", "large", 1)),
				Classes: map[conformance.Refusal]*v1alpha1.MachineClass{
					conformance.Invalid: classOf(strings.Replace(small, "small", "huge", 1)),
				},
				BadSecret: secret("not-that-token"),
			},
			Hooks: conformance.Hooks{Restart: open, Instances: func(ctx context.Context) ([]string, error) {
				vms, err := cloud.Client{URL: server.URL, Token: token}.List(ctx, nil)
				var ids []string
				for _, vm := range vms {
					ids = append(ids, "example:///"+vm.ID)
				}
				return ids, err
			}},
		}
	})
}
