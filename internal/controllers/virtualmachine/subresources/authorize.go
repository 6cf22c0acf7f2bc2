package subresources

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

// authenticationConfig is the ConfigMap in which kube-apiserver publishes how to verify its front proxy. The role
// extension-apiserver-authentication-reader grants permission to read it.
const authenticationConfig = "extension-apiserver-authentication"

// frontProxy authenticates the front proxy of kube-apiserver, and the users on whose behalf it sends requests.
type frontProxy struct {
	authority *dynamiccertificates.ConfigMapCAController
	headers   *headerrequest.RequestHeaderAuthRequestController
	authenticator.Request
}

func newFrontProxy(clients kubernetes.Interface) (*frontProxy, error) {
	const prefix = "requestheader-"
	authority, err := dynamiccertificates.NewDynamicCAFromConfigMapController("front-proxy", metav1.NamespaceSystem, authenticationConfig, prefix+"client-ca-file", clients)
	if err != nil {
		return nil, fmt.Errorf("setting up the certificate authority of the front proxy: %w", err)
	}
	headers := headerrequest.NewRequestHeaderAuthRequestController(authenticationConfig, metav1.NamespaceSystem, clients,
		prefix+"username-headers", prefix+"uid-headers", prefix+"group-headers", prefix+"extra-headers-prefix", prefix+"allowed-names")
	return &frontProxy{
		authority: authority, headers: headers,
		Request: headerrequest.NewDynamicVerifyOptionsSecure(authority.VerifyOptions,
			headerrequest.StringSliceProviderFunc(headers.AllowedClientNames),
			headerrequest.StringSliceProviderFunc(headers.UsernameHeaders), headerrequest.StringSliceProviderFunc(headers.UIDHeaders),
			headerrequest.StringSliceProviderFunc(headers.GroupHeaders), headerrequest.StringSliceProviderFunc(headers.ExtraHeaderPrefixes)),
	}, nil
}

// run watches the ConfigMap until the context is canceled. Before it has been read, all clients are refused.
func (f *frontProxy) run(ctx context.Context) error {
	group := errgroup.Group{}
	group.Go(func() error { f.authority.Run(ctx, 1); return nil })
	group.Go(func() error { f.headers.Run(ctx, 1); return nil })
	return group.Wait()
}

// verify returns an error for a connection that does not come from the front proxy. Otherwise, other clients could
// keep connections open, although they would get no response to their requests.
func (f *frontProxy) verify(state tls.ConnectionState) error {
	options, ok := f.authority.VerifyOptions()
	if !ok {
		return errors.New("the certificate authority of the front proxy is not known yet")
	}
	options.Intermediates = x509.NewCertPool()
	for _, intermediate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	_, err := state.PeerCertificates[0].Verify(options)
	return err
}

// user returns the user on whose behalf a request was sent. Errors are API statuses for the client.
func (f *frontProxy) user(r *http.Request) (user.Info, error) {
	found, ok, err := f.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, apierrors.NewUnauthorized("only kube-apiserver may call this server")
	}
	return found.User, nil
}

// reviews creates SubjectAccessReviews.
type reviews interface {
	Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, options metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// authorize returns nil if a user may make a request. Errors are API statuses for the client. Every request is
// reviewed, so that a revoked permission takes effect immediately.
func authorize(ctx context.Context, reviews reviews, who user.Info, info *request.RequestInfo) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{},
	}}
	for key, values := range who.GetExtra() {
		review.Spec.Extra[key] = values
	}
	if info.IsResourceRequest {
		review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Namespace: info.Namespace, Verb: info.Verb, Group: info.APIGroup, Version: info.APIVersion,
			Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
		}
	} else {
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: info.Path, Verb: info.Verb}
	}
	result, err := reviews.Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return apierrors.NewInternalError(errors.New("cannot check whether the request is allowed: kube-apiserver did not respond to the SubjectAccessReview"))
	}
	if !result.Status.Allowed || result.Status.Denied {
		return forbidden(who, info)
	}
	return nil
}

// forbidden returns an error with the same text that kube-apiserver uses for its own resources.
func forbidden(who user.Info, info *request.RequestInfo) error {
	resource := info.Resource
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	why := fmt.Errorf("user %q cannot %s resource %q in API group %q in the namespace %q", who.GetName(), info.Verb, resource, info.APIGroup, info.Namespace)
	return apierrors.NewForbidden(schema.GroupResource{Group: info.APIGroup, Resource: resource}, info.Name, why)
}
