// Package controller builds clients of machine.sapcloud.io/v1alpha1, at MCM's import path.
package controller

import (
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/gardener/machine-controller-manager/pkg/client/clientset/versioned"
)

// ClientBuilder builds configurations and clients that send a name in their user agent. The methods that end in OrDie
// log an error and exit the process instead of returning the error.
type ClientBuilder interface {
	Config(name string) (*rest.Config, error)
	ConfigOrDie(name string) *rest.Config
	Client(name string) (versioned.Interface, error)
	ClientOrDie(name string) versioned.Interface
}

// SimpleClientBuilder is the ClientBuilder for one API server.
type SimpleClientBuilder struct {
	// ClientConfig is copied for each client. Required.
	ClientConfig *rest.Config
}

var _ ClientBuilder = SimpleClientBuilder{}

// Config implements ClientBuilder. It never returns an error.
func (b SimpleClientBuilder) Config(name string) (*rest.Config, error) {
	return rest.AddUserAgent(rest.CopyConfig(b.ClientConfig), name), nil
}

// ConfigOrDie implements ClientBuilder.
func (b SimpleClientBuilder) ConfigOrDie(name string) *rest.Config { return orDie(b.Config(name)) }

// Client implements ClientBuilder.
func (b SimpleClientBuilder) Client(name string) (versioned.Interface, error) {
	config, err := b.Config(name)
	if err != nil {
		return nil, err
	}
	return versioned.NewForConfig(config)
}

// ClientOrDie implements ClientBuilder.
func (b SimpleClientBuilder) ClientOrDie(name string) versioned.Interface {
	return orDie(b.Client(name))
}

func orDie[V any](value V, err error) V {
	if err != nil {
		klog.Fatal(err)
	}
	return value
}
