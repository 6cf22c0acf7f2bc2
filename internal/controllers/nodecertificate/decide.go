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
	// ReasonUnusual means that the request asks for more than a kubelet does.
	ReasonUnusual = "NotOfAKubelet"
	// ReasonOtherNode means that the request asks for another node than that of the Machine.
	ReasonOtherNode = "OtherNode"
	// ReasonNodeTaken means that the node of that name is, or is to be, not the Machine's.
	ReasonNodeTaken = "NodeTaken"
	// ReasonMachineDeleted means that the Machine is being deleted.
	ReasonMachineDeleted = "MachineDeleted"
)

// longest limits the bytes of a message, as the guest chooses what is quoted.
const longest = 1024

// facts are what a decision is made from.
type facts struct {
	request *certificatesv1.CertificateSigningRequestSpec
	// machine is that of the token.
	machine *v1alpha1.Machine
	// conflicting is another Machine that names the same node; nil if there is none.
	conflicting *v1alpha1.Machine
	// node has the name of the Machine's node; nil if there is none.
	node *corev1.Node
	// reserved reports that no Machine may have a node of that name.
	reserved bool
}

// decision is a condition of a request. Its kind is empty while the name of the Machine's node is
// not known.
type decision struct {
	kind            certificatesv1.RequestConditionType
	reason, message string
}

func deny(reason, format string, args ...any) decision {
	return decision{certificatesv1.CertificateDenied, reason, messages.Shorten(fmt.Sprintf(format, args...), longest)}
}

// decide decides on the request of a Machine's token.
func decide(f facts) decision {
	asked, unusual := nodeAskedFor(f.request)
	name := f.machine.Labels[v1alpha1.NodeLabelKey]
	switch {
	case unusual != "":
		return deny(ReasonUnusual, "The token of machine %q is for the certificate of its kubelet: %s", f.machine.Name, unusual)
	case !f.machine.DeletionTimestamp.IsZero():
		return deny(ReasonMachineDeleted, "Machine %q is being deleted", f.machine.Name)
	case name == "":
		return decision{}
	case asked != userPrefix+name:
		return deny(ReasonOtherNode, "The token of machine %q is for %q, not for %q", f.machine.Name, userPrefix+name, asked)
	}
	if taken := f.takenBy(); taken != "" {
		return deny(ReasonNodeTaken, "Machine %q cannot join as node %q: %s", f.machine.Name, name, taken)
	}
	return decision{certificatesv1.CertificateApproved, ReasonJoins, fmt.Sprintf("Machine %q joins as node %q", f.machine.Name, name)}
}

// nodeAskedFor returns the user name in a request, or what is wrong with a request that no kubelet
// makes. All alternative names are extensions.
func nodeAskedFor(spec *certificatesv1.CertificateSigningRequestSpec) (user, unusual string) {
	block, _ := pem.Decode(spec.Request)
	if block == nil {
		return "", "the request is not in PEM form"
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", "the request cannot be parsed"
	}
	switch subject := request.Subject; {
	case !slices.Equal(subject.Organization, []string{group}):
		return "", fmt.Sprintf("the organizations are %q, not %q alone", subject.Organization, group)
	case len(subject.Names) != 2:
		return "", "the subject has more than an organization and a common name"
	case len(request.Extensions) > 0:
		return "", "it has alternative names or other extensions"
	}
	if problem := unusualUsages(spec.Usages); problem != "" {
		return "", problem
	}
	return request.Subject.CommonName, ""
}

// unusualUsages reports usages other than those that the signer accepts.
func unusualUsages(usages []certificatesv1.KeyUsage) string {
	required := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}
	for _, usage := range required {
		if !slices.Contains(usages, usage) {
			return fmt.Sprintf("it lacks the usage %q", usage)
		}
	}
	for _, usage := range usages {
		if usage != certificatesv1.UsageKeyEncipherment && !slices.Contains(required, usage) {
			return fmt.Sprintf("it has the usage %q", usage)
		}
	}
	return ""
}

// takenBy returns whose the name of the Machine's node is, if it is not the Machine's. Users can
// edit the labels and the provider ID of a Machine, but not when an existing node was created.
func (f facts) takenBy() string {
	switch {
	case f.reserved:
		return "the name is reserved"
	case f.conflicting != nil:
		return fmt.Sprintf("machine %q names the same node", f.conflicting.Name)
	case f.node == nil:
		return ""
	}
	marked, id := f.node.Labels[v1alpha1.LabelKeyMachineName], f.node.Spec.ProviderID
	_, host := f.node.Labels[vmv1alpha1.HostKey]
	switch {
	case host:
		return "it is a host of virtual machines"
	case f.node.CreationTimestamp.Before(&f.machine.CreationTimestamp):
		return "there is a node of that name, older than the machine"
	case marked == f.machine.Name:
		return ""
	case marked != "":
		return fmt.Sprintf("it is the node of machine %q", marked)
	case id != "" && id != f.machine.Spec.ProviderID:
		return fmt.Sprintf("there is a node of that name, whose VM is %q", id)
	}
	return ""
}
