package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver/kubeconfig"
)

const (
	// Prefix is the prefix of the annotations of Namespaces and Leases that the fleet uses. On a Namespace, the name of a
	// flag with the prefix sets that flag for the namespace.
	Prefix = "fleet.millwright.dev/"
	// KubeconfigKey is the key of a kubeconfig in its Secret.
	KubeconfigKey = "kubeconfig"
)

// Reasons of problems, which are also the reasons of their events.
const (
	ReasonSecretMissing     = "TargetSecretMissing"
	ReasonSecretAmbiguous   = "TargetSecretAmbiguous"
	ReasonKubeconfigRefused = "KubeconfigRefused"
	ReasonSettingsInvalid   = "SettingsInvalid"
	ReasonTargetIsSeed      = "TargetIsSeed"
	ReasonTargetChanged     = "TargetChanged"
	ReasonTargetUnknown     = "TargetNotIdentified"
	ReasonFailed            = "ManagerFailed"
	ReasonPanicked          = "ManagerPanicked"
	ReasonLeft              = "LeftFleet"
)

// problem is why a namespace is not served. It is an error with a reason and a sentence for users.
type problem struct {
	reason, text string
	// cause is the error of the manager, if there is one.
	cause error
}

// Error implements error.
func (p *problem) Error() string { return p.text }

func problemf(reason, format string, values ...any) *problem {
	return &problem{reason: reason, text: fmt.Sprintf(format, values...)}
}

// member is a namespace of the fleet.
type member struct {
	namespace *corev1.Namespace
	// key changes when the manager of the namespace must be restarted.
	key string
	// problem is why the namespace cannot be served. If it is nil, target and settings are set.
	problem  *problem
	target   *rest.Config
	settings Settings
}

// planner derives the members from the objects of the seed.
type planner struct {
	// targets describes which Secrets have kubeconfigs, for messages.
	targets string
	// configure returns the settings of a namespace with the given annotations, without their prefix.
	configure func(namespace string, annotations map[string]string) (Settings, error)
	// last are the members of the last plan. Their objects are not checked again unless they changed.
	last map[string]member
}

// plan returns the members by namespace. secrets are the Secrets with kubeconfigs.
func (p *planner) plan(namespaces []corev1.Namespace, secrets []corev1.Secret) map[string]member {
	of := map[string][]*corev1.Secret{}
	for i := range secrets {
		of[secrets[i].Namespace] = append(of[secrets[i].Namespace], &secrets[i])
	}
	members := map[string]member{}
	for i := range namespaces {
		namespace := &namespaces[i]
		key := keyOf(namespace, of[namespace.Name])
		made := p.last[namespace.Name]
		if made.key != key {
			made = p.check(namespace, of[namespace.Name])
			made.key = key
		}
		made.namespace = namespace
		members[namespace.Name] = made
	}
	p.last = members
	return members
}

// check returns the member for a namespace and its Secrets.
func (p *planner) check(namespace *corev1.Namespace, secrets []*corev1.Secret) member {
	switch len(secrets) {
	case 0:
		return member{problem: problemf(ReasonSecretMissing, "no Secret %s in this namespace; create one with the kubeconfig of the target cluster in the key %s", p.targets, KubeconfigKey)}
	case 1:
	default:
		return member{problem: problemf(ReasonSecretAmbiguous, "%d Secrets %s in this namespace (%s); keep one", len(secrets), p.targets, strings.Join(namesOf(secrets), ", "))}
	}
	target, err := kubeconfig.Parse(secrets[0].Data[KubeconfigKey])
	if err != nil {
		return member{problem: problemf(ReasonKubeconfigRefused, "the kubeconfig in the key %s of Secret %s cannot be used: %v", KubeconfigKey, secrets[0].Name, err)}
	}
	settings, err := p.configure(namespace.Name, annotationsOf(namespace))
	if err != nil {
		return member{problem: problemf(ReasonSettingsInvalid, "annotations %s* of the namespace: %v", Prefix, err)}
	}
	return member{target: target, settings: settings}
}

// namesOf returns the sorted names of the first few Secrets.
func namesOf(secrets []*corev1.Secret) []string {
	const most = 5
	var names []string
	for _, secret := range secrets {
		names = append(names, secret.Name)
	}
	slices.Sort(names)
	if len(names) > most {
		names = append(names[:most], "…")
	}
	return names
}

// annotationsOf returns the annotations that set flags, by the name of the flag.
func annotationsOf(namespace *corev1.Namespace) map[string]string {
	found := map[string]string{}
	for key, value := range namespace.Annotations {
		if name, ours := strings.CutPrefix(key, Prefix); ours {
			found[name] = value
		}
	}
	return found
}

// keyOf returns a digest of everything that a member is made from.
func keyOf(namespace *corev1.Namespace, secrets []*corev1.Secret) string {
	digest := sha256.New()
	add := func(texts ...string) {
		for _, text := range texts {
			fmt.Fprintf(digest, "%d:%s", len(text), text)
		}
	}
	add(string(namespace.UID))
	annotations := annotationsOf(namespace)
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		add(name, annotations[name])
	}
	add(namesOf(secrets)...)
	if len(secrets) == 1 {
		add(string(secrets[0].Data[KubeconfigKey]))
	}
	add(fmt.Sprint(len(secrets)))
	return hex.EncodeToString(digest.Sum(nil))
}
