package podspec

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Certificates is a volume of a CSI driver that issues a certificate to each hypervisor, such as that of
// cert-manager.
type Certificates struct {
	// Driver is the name of the CSI driver. The driver must write the files tls.crt, tls.key and ca.crt. Required.
	Driver string
	// Attributes are the volume attributes for the driver. Each occurrence of VMName in a value is replaced by the
	// name of the VirtualMachine.
	Attributes map[string]string
}

// VMName is a placeholder for the name of the VirtualMachine in Certificates.Attributes.
const VMName = "${VM_NAME}"

// environment returns variables with the paths of the certificate files; none if c is nil.
func (c *Certificates) environment() []corev1.EnvVar {
	if c == nil {
		return nil
	}
	return []corev1.EnvVar{
		{Name: vmpb.EnvCertFile, Value: vmpb.IdentityCertFile},
		{Name: vmpb.EnvKeyFile, Value: vmpb.IdentityKeyFile},
		{Name: vmpb.EnvAuthorityFile, Value: vmpb.IdentityAuthorityFile},
	}
}

func (c *Certificates) volume(vm *v1alpha1.VirtualMachine) corev1.VolumeSource {
	attributes := map[string]string{}
	for name, value := range c.Attributes {
		attributes[name] = strings.ReplaceAll(value, VMName, vm.Name)
	}
	return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: c.Driver, ReadOnly: ptr.To(true), VolumeAttributes: attributes}}
}

// identityFor returns the volume through which a hypervisor gets its certificate, and the directory at which it is
// mounted. The volume has either a token that the VM controller exchanges for a certificate, or a certificate of
// another authority. The directory is empty if the Pod needs no such volume.
func identityFor(vm *v1alpha1.VirtualMachine, s Settings) (volume corev1.Volume, directory string) {
	switch {
	case s.Authority != "":
		token := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: vmpb.TokenAudience, ExpirationSeconds: ptr.To[int64](tokenSeconds), Path: path.Base(vmpb.TokenPath),
			},
		}}}}
		return corev1.Volume{Name: volumeToken, VolumeSource: token}, path.Dir(vmpb.TokenPath)
	case s.Certificates != nil:
		return corev1.Volume{Name: volumeIdentity, VolumeSource: s.Certificates.volume(vm)}, vmpb.IdentityPath
	default:
		return corev1.Volume{}, ""
	}
}

// TrustedAuthorities returns the certificates of the authorities that the hypervisor or disk server in a Pod trusts
// since its start, in PEM form; empty if another system issues its certificate.
func TrustedAuthorities(pod *corev1.Pod) string {
	for _, name := range []string{ContainerName, ServerContainerName} {
		container := containerOf(pod, name)
		if container == nil {
			continue
		}
		for _, variable := range container.Env {
			if variable.Name == vmpb.EnvAuthority {
				return variable.Value
			}
		}
	}
	return ""
}
