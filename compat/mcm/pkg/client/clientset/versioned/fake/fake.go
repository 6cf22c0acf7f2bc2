// Package fake contains clients that keep objects in memory, for tests, at MCM's import path.
package fake

import (
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millwright-dev/millwright/client/clientset/versioned/fake"
)

// Clientset is a versioned.Interface without an API server. Reactors can replace its responses.
type Clientset = fake.Clientset

// NewSimpleClientset returns clients for these objects. It panics if one has a kind that the clients do not know.
//
// The clients validate and default nothing, and do not support server-side apply.
func NewSimpleClientset(objects ...runtime.Object) *Clientset {
	return fake.NewSimpleClientset(objects...)
}
