package rotation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	identitypb "github.com/millwright-dev/millwright/proto/identity"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const namespace = "millwright-system"

// site is a cluster with a VM controller that can be restarted.
type site struct {
	*testing.T
	client   client.Client
	clock    *clocktesting.FakePassiveClock
	events   *record.FakeRecorder
	rotation *Rotation
	// failing makes the next write fail after it has been stored.
	failing bool
}

func newSite(t *testing.T) *site {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	s := &site{T: t, clock: clocktesting.NewFakePassiveClock(noon), events: record.NewFakeRecorder(100)}
	s.client = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			err := c.Update(ctx, object, options...)
			if s.failing {
				s.failing = false
				return context.DeadlineExceeded
			}
			return err
		},
	}).Build()
	s.start()
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start replaces the process of the VM controller. The new one knows only the cluster.
func (s *site) start() {
	s.Helper()
	authority, err := Load(s.Context(), s.client, namespace)
	must(s.T, err)
	s.rotation = New(Options{Client: s.client, Pods: s.client, Namespace: namespace, Authority: authority, Events: s.events, Clock: s.clock})
	must(s.T, s.rotation.Reload(s.Context()))
}

func (s *site) step() {
	s.Helper()
	must(s.T, s.rotation.Step(s.Context()))
}

func (s *site) pass(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

func (s *site) secret() *corev1.Secret {
	s.Helper()
	secret := &corev1.Secret{}
	must(s.T, s.client.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: podspec.AuthoritySecret}, secret))
	return secret
}

func (s *site) request() {
	s.Helper()
	secret := s.secret()
	secret.Annotations = map[string]string{v1alpha1.AnnotationRotateAuthority: ""}
	must(s.T, s.client.Update(s.Context(), secret))
}

// hypervisor creates a Pod with a hypervisor that trusts the authorities of this moment.
func (s *site) hypervisor(name string, changes ...func(*corev1.Pod)) identity.Peer {
	s.Helper()
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, Labels: map[string]string{v1alpha1.LabelVM: "web"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.VirtualMachineKind, Name: "web", UID: "1", Controller: &yes}},
		},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
			Name: podspec.ContainerName, Env: []corev1.EnvVar{{Name: vmpb.EnvAuthority, Value: string(s.rotation.Authority.Bundle())}},
		}}},
	}
	for _, change := range changes {
		change(pod)
	}
	must(s.T, s.client.Create(s.Context(), pod))
	return identity.Peer{Namespace: "shop", VM: "web", Pod: name}
}

// confirm makes a hypervisor report that it trusts all current authorities.
func (s *site) confirm(hypervisor identity.Peer) {
	s.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(s.T, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	must(s.T, err)
	der, err := s.rotation.Authority.Sign(csr, hypervisor, identity.Lifetime, s.clock.Now())
	must(s.T, err)
	leaf, err := x509.ParseCertificate(der)
	must(s.T, err)
	parsed, err := parse(s.secret())
	must(s.T, err)
	request := &identitypb.AwaitAuthoritiesRequest{}
	for _, authority := range []*identity.Authority{parsed.current, parsed.next} {
		digest := sha256.Sum256(authority.Certificate().Raw)
		request.Digests = append(request.Digests, digest[:])
	}
	ctx, cancel := context.WithCancel(peer.NewContext(s.Context(), &peer.Peer{
		AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}},
	}))
	cancel() // the hypervisor trusts what it must trust, and would wait
	if _, err := (&identity.Issuer{Authority: s.rotation.Authority}).AwaitAuthorities(ctx, request); err == nil {
		s.Error("the hypervisor does not trust the current authorities")
	}
}

func (s *site) wantPhase(want Phase, message string) {
	s.Helper()
	state, annotation := s.rotation.State(), s.secret().Annotations[v1alpha1.AnnotationAuthorityRotation]
	if state.Phase != want || !strings.Contains(annotation, message) || (annotation == "") != (message == "") {
		s.Errorf("the phase is %q (%q), want %q (%q)", state.Phase, annotation, want, message)
	}
}

// wantEvent reads the next event.
func (s *site) wantEvent(reason string) {
	s.Helper()
	select {
	case event := <-s.events.Events:
		if !strings.Contains(event, reason) {
			s.Errorf("the event is %q, want %s", event, reason)
		}
	default:
		s.Errorf("no event, want %s", reason)
	}
}

func (s *site) signer() string { return string(s.rotation.Authority.Certificate().Raw) }

// The process restarts after each step, and the response to each write is lost.
func TestRotation_IsCompletedByRestartedProcesses(t *testing.T) {
	s := newSite(t)
	old := s.signer()
	early := s.hypervisor("web-1")
	s.hypervisor("web-0", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
	s.hypervisor("other-1", func(pod *corev1.Pod) { pod.Spec.Containers[0].Env[0].Value = "another VM controller's" })
	again := func() {
		s.Helper()
		s.failing = true
		if err := s.rotation.Step(s.Context()); err == nil {
			s.Error("the step was not interrupted")
		}
		s.failing = false
		s.start()
		s.step()
	}
	s.step()
	s.wantPhase(PhaseNone, "")

	s.request()
	again()
	s.wantPhase(PhaseDistributing, "1 of 1 hypervisors do not trust the next authority yet: shop/web-1")
	if s.rotation.State().Pending != 1 || s.signer() != old {
		t.Errorf("pending: %d, signs with the old authority: %v", s.rotation.State().Pending, s.signer() == old)
	}
	s.hypervisor("web-2") // trusts both since its start
	s.pass(minDistribution)
	s.step()
	s.wantPhase(PhaseDistributing, "1 of 2 hypervisors do not trust the next authority yet: shop/web-1")
	s.confirm(early)
	s.start()
	s.step()
	s.wantPhase(PhaseDistributing, "1 of 2 hypervisors") // it must confirm to the new process
	s.confirm(early)
	s.step()
	s.wantPhase(PhaseDistributing, "all 2 hypervisors trust the next authority")
	s.pass(minDistribution)

	again()
	s.wantPhase(PhaseRetiring, "trusted until 2026-03-02T13:10:00Z")
	if s.signer() == old {
		t.Error("the new authority does not issue certificates")
	}
	if bundle := string(s.rotation.Authority.Bundle()); strings.Count(bundle, "BEGIN") != 2 {
		t.Errorf("trusted:\n%s", bundle)
	}
	s.pass(retirement - time.Second)
	s.step()
	s.wantPhase(PhaseRetiring, "trusted until")
	s.pass(time.Second)
	again()
	s.wantPhase(PhaseNone, "")
	secret := s.secret()
	if len(secret.Data) != 2 || len(secret.Annotations) != 0 || strings.Count(string(s.rotation.Authority.Bundle()), "BEGIN") != 1 {
		t.Errorf("data: %d, annotations: %v", len(secret.Data), secret.Annotations)
	}
}

func TestRotation_Events(t *testing.T) {
	s := newSite(t)
	s.request()
	s.step()
	s.wantEvent(reasonStarted)
	s.step()
	s.pass(minDistribution)
	s.step()
	s.wantEvent(reasonChanged)
	s.pass(retirement)
	s.step()
	s.wantEvent(reasonRetired)
	version := s.secret().ResourceVersion
	s.step()
	if s.secret().ResourceVersion != version || len(s.events.Events) > 0 {
		t.Error("a step without a rotation writes")
	}
}

func TestRotation_BeginsLongBeforeExpiry(t *testing.T) {
	s := newSite(t)
	cert := s.rotation.Authority.Certificate()
	s.clock.SetTime(renewal(s.rotation.Authority))
	s.step()
	s.wantPhase(PhaseNone, "")
	s.pass(time.Second)
	s.step()
	s.wantPhase(PhaseDistributing, "0 hypervisors")
	if left := cert.NotAfter.Sub(s.clock.Now()); left < 3*365*24*time.Hour {
		t.Errorf("%v remain", left)
	}
}

// A user who restores a backup, or who rotates by editing the wrong keys, must not disconnect all hypervisors.
func TestRotation_IgnoresUnknownAuthority(t *testing.T) {
	s := newSite(t)
	s.step()
	old := s.signer()
	foreign, err := identity.NewAuthority(noon)
	must(t, err)
	certificate, key := foreign.PEM()
	for name, change := range map[string]func(secret *corev1.Secret){
		"another authority": func(secret *corev1.Secret) {
			secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = certificate, key
		},
		"damaged": func(secret *corev1.Secret) { secret.Data[corev1.TLSCertKey] = []byte("x") },
	} {
		secret := s.secret()
		before := secret.DeepCopy()
		change(secret)
		must(t, s.client.Update(t.Context(), secret))
		for range 2 {
			if err := s.rotation.Step(t.Context()); err == nil || strings.Contains(err.Error(), string(key)) {
				t.Errorf("%s: the error is %v", name, err)
			}
		}
		s.wantEvent(reasonInvalid)
		if s.signer() != old || len(s.events.Events) > 0 {
			t.Errorf("%s: is used, or there are two events", name)
		}
		before.ResourceVersion = secret.ResourceVersion
		must(t, s.client.Update(t.Context(), before))
	}
	s.step()
}

// A user can rotate to an authority of their own.
func TestRotation_UsesNextAuthorityOfUser(t *testing.T) {
	s := newSite(t)
	next, err := identity.NewAuthority(noon)
	must(t, err)
	set := func(certificate, key []byte) {
		t.Helper()
		secret := s.secret()
		secret.Data[keyNextCert], secret.Data[keyNextKey] = certificate, key
		must(t, s.client.Update(t.Context(), secret))
	}
	certificate, key := next.PEM()
	old := s.rotation.Authority.Certificate()
	s.step()
	set(certificate, []byte("damaged"))
	if err := s.rotation.Step(t.Context()); err == nil {
		t.Error("a damaged key is used")
	}
	s.wantEvent(reasonInvalid)
	s.wantPhase(PhaseNone, "")
	set(certificate, key)
	s.clock.SetTime(next.Certificate().NotAfter)
	s.step()
	s.wantPhase(PhaseDistributing, "next.crt is not valid now")
	s.clock.SetTime(noon)
	s.step()
	s.pass(minDistribution)
	s.step()
	if s.signer() != string(next.Certificate().Raw) || string(s.secret().Data[keyPreviousCert]) != string(identity.EncodeCertificate(old)) {
		t.Error("the user's authority does not issue certificates")
	}
}

func TestRotation_RestoresDeletedSecret(t *testing.T) {
	s := newSite(t)
	s.request()
	s.step()
	s.step()
	before := s.secret()
	must(t, s.client.Delete(t.Context(), before.DeepCopy()))
	s.step()
	after := s.secret()
	if fmt.Sprint(after.Data) != fmt.Sprint(before.Data) {
		t.Error("the restored authorities are different")
	}
	s.wantEvent(reasonStarted)
	s.wantEvent(reasonRestored)
	s.wantPhase(PhaseDistributing, "0 hypervisors")

	must(t, s.client.Delete(t.Context(), after))
	signer := s.signer()
	must(t, s.rotation.Reload(t.Context()))
	if s.signer() != signer {
		t.Error("a process that becomes the leader replaced the authority that it knew")
	}
}

// A process that was waiting to lead since before a rotation becomes the leader.
func TestRotation_NextLeaderKnowsOnlyPreviousAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		standby := s.rotation
		s.start()
		s.request()
		s.step()
		s.step()
		s.pass(minDistribution)
		s.step()
		s.wantEvent(reasonStarted)
		s.wantEvent(reasonChanged)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- standby.Start(ctx) }()
		synctest.Wait()
		if string(standby.Authority.Certificate().Raw) != s.signer() || standby.State().Phase != PhaseRetiring || len(s.events.Events) > 0 {
			t.Errorf("the phase is %q, %d events", standby.State().Phase, len(s.events.Events))
		}
		s.pass(retirement)
		time.Sleep(idleInterval)
		synctest.Wait()
		s.wantEvent(reasonRetired)
		cancel()
		must(t, <-ended)
		if standby.State() != (State{}) {
			t.Error("a process that does not lead has a state")
		}
	})
}

func TestPlan_UnknownTimeOfChange(t *testing.T) {
	s := newSite(t)
	s.request()
	s.step()
	s.step()
	s.pass(minDistribution)
	s.step()
	for _, value := range []string{"", "yesterday", s.clock.Now().Add(time.Hour).Format(time.RFC3339)} {
		secret := s.secret()
		secret.Annotations[v1alpha1.AnnotationAuthoritySwitched] = value
		must(t, s.client.Update(t.Context(), secret))
		s.step()
		if got := s.secret().Annotations[v1alpha1.AnnotationAuthoritySwitched]; got != s.clock.Now().Format(time.RFC3339) {
			t.Errorf("%q became %q", value, got)
		}
	}
	s.wantPhase(PhaseRetiring, "trusted until")
}

func TestNames_AreLimited(t *testing.T) {
	if got := names([]string{"a", "b", "c", "d", "e", "f", "g"}); got != "a, b, c, d, e and 2 more" {
		t.Errorf("got %q", got)
	}
}
