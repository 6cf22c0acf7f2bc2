package podspec

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// Certificates is a volume of a CSI driver that issues a certificate to each hypervisor, as that of cert-manager.
type Certificates struct {
	// Driver is the name of the CSI driver. It lays the files tls.crt, tls.key and ca.crt. Required.
	Driver string
	// Attributes are what the driver is told. VMName in a value stands for the name of the VirtualMachine.
	Attributes map[string]string
}

// VMName in an attribute stands for the name of the VirtualMachine.
const VMName = "${VM_NAME}"

// environment says where the files are; nothing without a volume.
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

// identityFor returns the volume by which a hypervisor gets its certificate, and where it is mounted: a token that
// the VM controller exchanges for one, or a certificate of others. The folder is empty if the Pod has no such volume.
func identityFor(vm *v1alpha1.VirtualMachine, s Settings) (volume corev1.Volume, folder string) {
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
