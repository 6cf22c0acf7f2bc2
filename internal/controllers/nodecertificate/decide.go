package nodecertificate

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// The identity of a node.
const (
	userPrefix = "system:node:"
	group      = "system:nodes"
)

// Reasons of the conditions Approved and Denied.
const (
	// ReasonJoins means that the node of the token's Machine joins.
	ReasonJoins = "MachineJoins"
	// ReasonUnusual means that the request is not one that a kubelet makes.
	ReasonUnusual = "NotOfAKubelet"
	// ReasonOtherNode means that the request is for another node than the Machine's.
	ReasonOtherNode = "OtherNode"
	// ReasonNodeTaken means that the node name is reserved or belongs to another object.
	ReasonNodeTaken = "NodeTaken"
	// ReasonMachineDeleted means that the Machine is being deleted.
	ReasonMachineDeleted = "MachineDeleted"
)

// maxMessage is the maximum length of a message in bytes, since it quotes text that the guest chooses.
const maxMessage = 1024

// facts contains the inputs of a decision.
type facts struct {
	request *certificatesv1.CertificateSigningRequestSpec
	// machine is the Machine that owns the token.
	machine *v1alpha1.Machine
	// conflicting is another Machine that names the same node; nil if there is none.
	conflicting *v1alpha1.Machine
	// node is the existing node with the name of the Machine's node; nil if there is none.
	node *corev1.Node
	// reserved reports that the name of the node is reserved.
	reserved bool
}

// decision is the condition that approves or denies a request. Its kind is empty while the name of the Machine's node is
// not known.
type decision struct {
	kind            certificatesv1.RequestConditionType
	reason, message string
}

func deny(reason, format string, args ...any) decision {
	return decision{certificatesv1.CertificateDenied, reason, messages.Shorten(fmt.Sprintf(format, args...), maxMessage)}
}

// decide decides on a request that was made with a Machine's token.
func decide(f facts) decision {
	user, unusual := requestedUser(f.request)
	name := f.machine.NodeName()
	switch {
	case unusual != "":
		return deny(ReasonUnusual, "The token of machine %q may only request the certificate of its kubelet: %s", f.machine.Name, unusual)
	case !f.machine.DeletionTimestamp.IsZero():
		return deny(ReasonMachineDeleted, "Machine %q is being deleted", f.machine.Name)
	case name == "":
		return decision{}
	case user != userPrefix+name:
		return deny(ReasonOtherNode, "The token of machine %q may only request a certificate for %q, not for %q", f.machine.Name, userPrefix+name, user)
	}
	if taken := f.takenBy(); taken != "" {
		return deny(ReasonNodeTaken, "Machine %q cannot join as node %q: %s", f.machine.Name, name, taken)
	}
	return decision{certificatesv1.CertificateApproved, ReasonJoins, fmt.Sprintf("Machine %q joins as node %q", f.machine.Name, name)}
}

// maxRequest limits the length of a request, in bytes. That of a kubelet has about 500.
const maxRequest = 64 << 10

// requestedUser returns the user name in a request, or why the request is not one that a kubelet makes. Alternative
// names are extensions of the request.
func requestedUser(spec *certificatesv1.CertificateSigningRequestSpec) (user, unusual string) {
	if len(spec.Request) > maxRequest {
		return "", fmt.Sprintf("the request is longer than %d bytes", maxRequest)
	}
	block, _ := pem.Decode(spec.Request)
	if block == nil {
		return "", "the request is not PEM-encoded"
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", "the request cannot be parsed"
	}
	switch subject := request.Subject; {
	case !slices.Equal(subject.Organization, []string{group}):
		return "", fmt.Sprintf("the organizations are %q, want only %q", subject.Organization, group)
	case len(subject.Names) != 2:
		return "", "the subject has more than an organization and a common name"
	case len(request.Extensions) > 0:
		return "", "the request has alternative names or other extensions"
	}
	if problem := unusualUsages(spec.Usages); problem != "" {
		return "", problem
	}
	return request.Subject.CommonName, ""
}

// unusualUsages describes missing usages, and usages that the signer does not accept. It returns "" if there are none.
func unusualUsages(usages []certificatesv1.KeyUsage) string {
	required := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}
	for _, usage := range required {
		if !slices.Contains(usages, usage) {
			return fmt.Sprintf("the request lacks the usage %q", usage)
		}
	}
	for _, usage := range usages {
		if usage != certificatesv1.UsageKeyEncipherment && !slices.Contains(required, usage) {
			return fmt.Sprintf("the request has the usage %q", usage)
		}
	}
	return ""
}

// takenBy returns why the node name does not belong to the Machine, or "" if it does. Users can edit the labels and the
// provider ID of a Machine, but not the creation time of an existing node.
func (f facts) takenBy() string {
	switch {
	case f.reserved:
		return "the name is reserved"
	case f.conflicting != nil:
		return fmt.Sprintf("machine %q has the same node name", f.conflicting.Name)
	case f.node == nil:
		return ""
	}
	marked, id := f.node.Labels[v1alpha1.LabelKeyMachineName], f.node.Spec.ProviderID
	_, host := f.node.Labels[vmv1alpha1.HostKey]
	switch {
	case host:
		return "the node is a host of virtual machines"
	case f.node.CreationTimestamp.Before(&f.machine.CreationTimestamp):
		return "the existing node is older than the machine"
	case marked == f.machine.Name:
		return ""
	case marked != "":
		return fmt.Sprintf("the existing node belongs to machine %q", marked)
	case id != "" && id != f.machine.Spec.ProviderID:
		return fmt.Sprintf("the existing node has provider ID %q", id)
	}
	return ""
}
