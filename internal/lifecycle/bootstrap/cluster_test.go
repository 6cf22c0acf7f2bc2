package bootstrap_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
)

// cluster is a target cluster. Unlike the plain fake client, it gives a UID to each object and honors UID
// preconditions, like an API server.
type cluster struct {
	t      *testing.T
	client client.Client
	clock  *clocktesting.FakePassiveClock
	made   int
	// requests are the requests by verb. All are about Secrets.
	requests []string
	// fail has the errors of requests, by verb.
	fail map[string]error
	// afterDelete, if not nil, is called once after a successful deletion.
	afterDelete func()
}

var secrets = schema.GroupResource{Resource: "secrets"}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, clock: clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)), fail: map[string]error{}}
	c.client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(ctx context.Context, inner client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			if err := c.request("create"); err != nil {
				return err
			}
			c.made++
			object.SetUID(types.UID(fmt.Sprint("uid-", c.made)))
			return inner.Create(ctx, object, opts...)
		},
		Get: func(ctx context.Context, inner client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if err := c.request("get"); err != nil {
				return err
			}
			return inner.Get(ctx, key, object, opts...)
		},
		Delete: func(ctx context.Context, inner client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if err := c.request("delete"); err != nil {
				return err
			}
			return c.delete(ctx, inner, object, opts)
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			return apierrors.NewForbidden(secrets, "", nil)
		},
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return apierrors.NewForbidden(secrets, "", nil)
		},
	})
	return c
}

func (c *cluster) request(verb string) error {
	c.requests = append(c.requests, verb)
	return c.fail[verb]
}

func (c *cluster) delete(ctx context.Context, inner client.WithWatch, object client.Object, opts []client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	if options.Preconditions == nil || options.Preconditions.UID == nil {
		c.t.Error("a token is deleted without a UID precondition")
		return nil
	}
	existing := &corev1.Secret{}
	if err := inner.Get(ctx, client.ObjectKeyFromObject(object), existing); err != nil {
		return err
	}
	if existing.UID != *options.Preconditions.UID {
		return apierrors.NewConflict(secrets, object.GetName(), fmt.Errorf("the UID is %s", existing.UID))
	}
	err := inner.Delete(ctx, existing)
	if err == nil && c.afterDelete != nil {
		c.afterDelete()
	}
	return err
}

// tokens returns the Tokens of a process that has just started.
func (c *cluster) tokens() *bootstrap.Tokens {
	return &bootstrap.Tokens{Target: c.client, Installation: "shoot--a", Clock: c.clock}
}

// all returns the Secrets of the cluster by name.
func (c *cluster) all() map[string]corev1.Secret {
	c.t.Helper()
	list := &corev1.SecretList{}
	if err := c.client.List(context.Background(), list); err != nil {
		c.t.Fatal(err)
	}
	all := map[string]corev1.Secret{}
	for _, secret := range list.Items {
		all[secret.Name] = secret
	}
	return all
}

// only returns the only Secret.
func (c *cluster) only() corev1.Secret {
	c.t.Helper()
	all := c.all()
	if len(all) != 1 {
		c.t.Fatalf("%d Secrets, want one", len(all))
	}
	for _, secret := range all {
		return secret
	}
	panic("not reached")
}

// occupy creates a Secret with the given name that belongs to another owner.
func (c *cluster) occupy(name string) {
	c.t.Helper()
	err := c.client.Create(context.Background(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
		Data:       map[string][]byte{"description": []byte("another owner's"), "token-secret": []byte("theirs")},
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// remove deletes a Secret, as the token cleaner does.
func (c *cluster) remove(secret corev1.Secret) {
	c.t.Helper()
	if err := c.client.Delete(context.Background(), &secret, client.Preconditions{UID: &secret.UID}); err != nil {
		c.t.Fatal(err)
	}
}
