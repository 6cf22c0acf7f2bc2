package env

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/test/support/repository"
)

// RunControllers runs the controllers that setUp adds to a manager, in the test's namespace, until the end of the
// test. The manager has the permissions of the shipped control role, and the indexes that all controllers share.
func (c *Cluster) RunControllers(t testing.TB, setUp func(mgr ctrl.Manager, events record.EventRecorder) error) {
	t.Helper()
	access := c.UserWith(t, "config/rbac/control-role.yaml")
	mgr, err := ctrl.NewManager(access, ctrl.Options{
		Scheme:                 NewScheme(),
		Cache:                  cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}},
		Controller:             config.Controller{SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false)}, // each test has its own controller
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := fieldindex.Add(t.Context(), mgr.GetFieldIndexer()); err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	events := record.NewBroadcaster()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: clients.CoreV1().Events("")})
	if err := setUp(mgr, events.NewRecorder(mgr.GetScheme(), corev1.EventSource{Component: userAgent})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // the test's context is canceled before the cleanup
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
		events.Shutdown()
	})
}

// Fresh prepares an object of a fixture for creation in the test's namespace: it clears the fields that an API
// server sets. It returns the same object.
func Fresh[T client.Object](e *Env, object T) T {
	object.SetNamespace(e.Namespace)
	object.SetUID("")
	object.SetCreationTimestamp(metav1.Time{})
	object.SetGeneration(0)
	return object
}

// InstallCRDs installs the CRDs of a directory of this repository that the control plane does not have. They are
// then available to all tests of the package.
func (c *Cluster) InstallCRDs(t testing.TB, directory string) {
	t.Helper()
	root, err := Root()
	if err == nil {
		err = controlplane.InstallCRDs(t.Context(), c.Admin, os.DirFS(filepath.Join(root, directory)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Root returns the root directory of this repository, which contains the directory in which the test runs.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.Contains(content, []byte("module github.com/millwright-dev/millwright\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("found no go.mod of this repository above the working directory")
		}
		dir = parent
	}
}

// Sources is like Root, for tests that start another process that reads files of the repository; see
// repository.DependOnAllFiles.
func Sources() (string, error) {
	repository.DependOnAllFiles()
	return Root()
}

// UserWith returns a configuration, without rate limit and user agent, for the test's user, who has the
// permissions of the Roles and ClusterRoles in the given manifests; see Grant.
func (c *Cluster) UserWith(t testing.TB, paths ...string) *rest.Config {
	t.Helper()
	return c.NamedUserWith(t, "user", paths...)
}

// NamedUserWith is like UserWith, for a user with another name, which the test's namespace makes unique. Two
// users cannot have the same role.
func (c *Cluster) NamedUserWith(t testing.TB, name string, paths ...string) *rest.Config {
	t.Helper()
	user := name + "-of-" + c.Namespace
	config, err := c.ControlPlane.UserConfig(user)
	if err != nil {
		t.Fatal(err)
	}
	c.Grant(t, user, paths...)
	return config
}

// Grant grants a user the permissions of the Roles and ClusterRoles in the given manifests (paths relative to
// Root). Roles without a namespace are created in that of the test. Other kinds in the files are an error. The
// roles are removed at the end of the test.
func (c *Cluster) Grant(t testing.TB, user string, paths ...string) {
	t.Helper()
	ctx := context.Background()
	impersonating := rest.CopyConfig(c.Admin)
	impersonating.Impersonate.UserName = user
	asUser, err := client.New(impersonating, client.Options{Scheme: ownScheme(), Mapper: c.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		roles, err := readRoles(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, role := range roles {
			if err := c.grant(ctx, t, role, user); err != nil {
				t.Fatalf("granting the roles of %s: %v", path, err)
			}
			if err := awaitGrant(ctx, asUser, role); err != nil {
				t.Fatalf("waiting for the roles of %s to count: %v", path, err)
			}
		}
	}
}

// AllowAggregation permits a user to read the configuration with which kube-apiserver authenticates proxied
// requests.
func (c *Cluster) AllowAggregation(t testing.TB, user string) {
	t.Helper()
	admin, err := client.New(c.Admin, client.Options{Scheme: ownScheme(), Mapper: c.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	if err := admin.Create(context.Background(), binding); err != nil {
		t.Fatal(err)
	}
}

// Kubeconfig writes a kubeconfig for a host without credentials, and returns its path.
func Kubeconfig(t testing.TB, host string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	WriteKubeconfig(t, path, &rest.Config{Host: host})
	return path
}

// WriteKubeconfig writes a kubeconfig for a configuration with a client certificate, such as that of UserWith.
func WriteKubeconfig(t testing.TB, path string, config *rest.Config) {
	t.Helper()
	const name = "test"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
}

// readRoles reads the documents of a manifest.
func readRoles(path string) ([]client.Object, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(ownScheme(), serializer.EnableStrict).UniversalDeserializer()
	documents := k8syaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	var roles []client.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return roles, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		object, err := runtime.Decode(decoder, document)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		switch role := object.(type) {
		case *rbacv1.Role, *rbacv1.ClusterRole:
			roles = append(roles, role.(client.Object))
		default:
			return nil, fmt.Errorf("%s holds a %s; only Role and ClusterRole are expected", path, object.GetObjectKind().GroupVersionKind().Kind)
		}
	}
}

// grant creates the role and binds it to the user. The test's namespace makes names unique.
func (c *Cluster) grant(ctx context.Context, t testing.TB, role client.Object, user string) error {
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}
	role.SetName(role.GetName() + "-" + c.Namespace)
	meta := metav1.ObjectMeta{Name: role.GetName()}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Name: role.GetName()}
	var binding client.Object
	if _, ok := role.(*rbacv1.ClusterRole); ok {
		ref.Kind = "ClusterRole"
		binding = &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}
	} else {
		if role.GetNamespace() == "" {
			role.SetNamespace(c.Namespace)
		}
		ref.Kind, meta.Namespace = "Role", role.GetNamespace()
		binding = &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}
	}
	for _, object := range []client.Object{role, binding} {
		if err := c.Client.Create(ctx, object); err != nil {
			return err
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
			defer cancel()
			c.Client.Delete(ctx, object) // its name is never reused
		})
	}
	return nil
}

// awaitGrant waits until the authorizer has observed the role and its binding.
func awaitGrant(ctx context.Context, asUser client.Client, role client.Object) error {
	var rules []rbacv1.PolicyRule
	switch role := role.(type) {
	case *rbacv1.Role:
		rules = role.Rules
	case *rbacv1.ClusterRole:
		rules = role.Rules
	}
	for _, rule := range rules {
		if len(rule.Resources) == 0 {
			continue // a rule on URLs
		}
		attributes := &authorizationv1.ResourceAttributes{
			Namespace: role.GetNamespace(), Verb: rule.Verbs[0], Group: rule.APIGroups[0],
		}
		attributes.Resource, attributes.Subresource, _ = strings.Cut(rule.Resources[0], "/")
		if len(rule.ResourceNames) > 0 {
			attributes.Name = rule.ResourceNames[0]
		}
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, WaitTimeout, true, func(ctx context.Context) (bool, error) {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
			err := asUser.Create(ctx, review)
			return review.Status.Allowed, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
