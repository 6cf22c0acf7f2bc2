// Package versioned contains clients of machine.sapcloud.io/v1alpha1, at MCM's import path. They are those of
// Millwright's module client, which documents them.
package versioned

import (
	"net/http"

	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/client/clientset/versioned"
)

type (
	// Interface returns the clients.
	Interface = versioned.Interface
	// Clientset is the Interface to an API server.
	Clientset = versioned.Clientset
)

// New returns clients that share a REST client.
func New(c rest.Interface) *Clientset { return versioned.New(c) }

// NewForConfig returns clients for an API server. The error names an invalid configuration.
func NewForConfig(c *rest.Config) (*Clientset, error) { return versioned.NewForConfig(c) }

// NewForConfigOrDie is NewForConfig, but panics if the configuration is invalid.
func NewForConfigOrDie(c *rest.Config) *Clientset { return versioned.NewForConfigOrDie(c) }

// NewForConfigAndClient is NewForConfig with an HTTP client, whose transport is used instead of the configured one.
func NewForConfigAndClient(c *rest.Config, httpClient *http.Client) (*Clientset, error) {
	return versioned.NewForConfigAndClient(c, httpClient)
}
