package vm_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// cutting is a client whose n-th request fails, before or after it takes effect.
type cutting struct {
	client.WithWatch
	at, calls int
	// counts means that the request takes effect, and only its response is lost.
	counts bool
	cut    bool
}

func (c *cutting) do(request func() error) error {
	c.calls++
	if c.calls-1 != c.at {
		return request()
	}
	c.cut = true
	if c.counts {
		if err := request(); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return io.ErrUnexpectedEOF
}

func (c *cutting) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.do(func() error { return c.WithWatch.Get(ctx, key, obj, opts...) })
}

func (c *cutting) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return c.do(func() error { return c.WithWatch.Create(ctx, obj, opts...) })
}

func (c *cutting) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return c.do(func() error { return c.WithWatch.Update(ctx, obj, opts...) })
}

func (c *cutting) Watch(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	var changes watch.Interface
	err := c.do(func() (err error) {
		changes, err = c.WithWatch.Watch(ctx, list, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return changes, nil
}

func eventually(t testing.TB, condition func() bool) {
	t.Helper()
	gomega.NewWithT(t).Eventually(condition).WithTimeout(finding).WithPolling(10 * time.Millisecond).Should(gomega.BeTrue())
}

// nowhere is the configuration of a cluster that does not exist.
var nowhere = &rest.Config{Host: "https://127.0.0.1:1"}

func notFound(name string) error {
	return apierrors.NewNotFound(vmv1alpha1.Resource("virtualmachines"), name)
}
