package vmcontroller

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// identityFlags configure certificates that others issue.
type identityFlags struct {
	files      identity.Files
	driver     string
	attributes []string
}

func (i *identityFlags) add(set *pflag.FlagSet) {
	set.StringVar(&i.files.Certificate, "identity-cert-file", "", "PEM file with this controller's certificate and its chain, issued by others; its only URI must be millwright://controller or spiffe://TRUST-DOMAIN/millwright/controller; hypervisors' certificates must then be issued by others, too; reloaded when it changes")
	set.StringVar(&i.files.Key, "identity-private-key-file", "", "PEM file with the private key of --identity-cert-file")
	set.StringVar(&i.files.Authority, "identity-authority-file", "", "PEM file with the certificates of the authorities of --identity-cert-file and of hypervisors")
	set.StringVar(&i.driver, "hypervisor-identity-driver", "", "CSI driver, such as csi.cert-manager.io, whose volume provides a hypervisor's certificate as tls.crt, tls.key and ca.crt; requires --identity-cert-file")
	set.StringArrayVar(&i.attributes, "hypervisor-identity-attribute", nil, "attribute of that volume, as NAME=VALUE, in which "+manager.VMName+" is the name of the virtual machine; may be repeated")
}

func (i *identityFlags) validate(wrong *args.Problems) {
	wrong.If(!i.files.None() && !i.files.Complete(), "--identity-cert-file, --identity-private-key-file, --identity-authority-file: set all or none")
	wrong.If(i.driver != "" && i.files.None(), "--hypervisor-identity-driver: requires --identity-cert-file")
	wrong.If(len(i.attributes) > 0 && i.driver == "", "--hypervisor-identity-attribute: requires --hypervisor-identity-driver")
	for _, attribute := range i.attributes {
		name, _, found := strings.Cut(attribute, "=")
		wrong.If(name == "" || !found, "--hypervisor-identity-attribute: %q is not NAME=VALUE", attribute)
	}
}

// credentials returns the credentials in the files, or nil if there are none.
func (i *identityFlags) credentials(log logr.Logger) (*identity.Credentials, error) {
	if i.files.None() {
		return nil, nil
	}
	if err := i.files.Check(identity.Controller(), time.Now()); err != nil {
		return nil, fmt.Errorf("--identity-cert-file: %w", err)
	}
	return identity.FromFiles(i.files, identity.Controller(), nil, slog.New(logr.ToSlogHandler(log.WithName("identity")))), nil
}

// certificates returns the certificate volume of hypervisors, or nil if there is none.
func (i *identityFlags) certificates() *manager.VMCertificates {
	if i.driver == "" {
		return nil
	}
	attributes := map[string]string{}
	for _, attribute := range i.attributes {
		name, value, _ := strings.Cut(attribute, "=")
		attributes[name] = value
	}
	return &manager.VMCertificates{Driver: i.driver, Attributes: attributes}
}
