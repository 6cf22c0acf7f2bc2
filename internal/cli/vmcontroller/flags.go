package vmcontroller

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/internal/cli/args"
	managercmd "github.com/millwright-dev/millwright/internal/cli/manager"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/vm/network/overlap"
)

// servicePort is the port of the Service in the manifests.
const servicePort = 10270

func (f *flags) add(set *pflag.FlagSet) {
	c := &f.config
	f.set = set
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster of the virtual machines; defaults to the in-cluster config")
	set.StringVar(&c.Namespace, "namespace", "", "namespace of this controller's lease, its Service and the Secret of its certificate authority; defaults to that of the Pod, or of the kubeconfig")
	set.StringSliceVar(&c.Namespaces, "vm-namespaces", nil, "comma-separated namespaces of the virtual machines, which cannot include that of this controller; empty for all others")
	set.Float32Var(&f.qps, "kube-api-qps", 100, "maximum requests per second to the API server")
	set.IntVar(&f.burst, "kube-api-burst", 200, "maximum burst of requests to the API server")
	args.Section(set, "cluster")
	set.StringVar(&c.Pages.Address, "address", "0.0.0.0", "IP address on which to serve /healthz, /readyz, /livez and /metrics")
	set.IntVar(&c.Pages.Port, "port", 10269, "port on which to serve /healthz, /readyz, /livez and /metrics over HTTP; 0 to disable")
	set.BoolVar(&c.Pages.Profiling.Enabled, "profiling", false, "enable profiling via web interface host:port/debug/pprof/")
	set.BoolVar(&c.Pages.Profiling.Contention, "contention-profiling", false, "enable block profiling; requires --profiling")
	args.Section(set, "serving")
	set.IntVar(&c.ConcurrentSyncs, "concurrent-syncs", 10, "number of virtual machines that are reconciled concurrently")
	set.Float64Var(&c.LeaseRenewals, "vm-lease-renewals", manager.DefaultVMLeaseRenewals, "maximum lease renewals per second that virtual machines with full leases may need together, 3 per leaseDurationSeconds of each; further ones are not started; the API server must serve twice as many reads in addition to --kube-api-qps")
	args.Section(set, "controller")
	managercmd.AddElection(set, &c.Election)
	set.StringVar(&c.Election.Namespace, "leader-elect-namespace", "", "namespace of the lease; defaults to --namespace")
	args.Section(set, "leader election")
	f.addHypervisors(set)
	f.pods.add(set)
	args.Section(set, "hypervisor")
	f.migrations.Add(set)
	args.Section(set, "migration")
	f.logging.Add(set)
}

// addHypervisors adds the flags that configure hypervisors.
func (f *flags) addHypervisors(set *pflag.FlagSet) {
	c := &f.config
	set.StringVar(&f.listen, "listen", ":10270", "host:port on which the leader serves hypervisors, with TLS 1.3 and certificates")
	set.StringVar(&f.subresources, "subresources-listen", ":10271", `host:port on which the leader serves kube-apiserver the subresources of virtual machines, such as console and migrate, through the port "subresources" of --service; empty to disable`)
	set.StringVar(&c.Service.Name, "service", manager.VMLease, `Service without a selector, in --namespace, whose endpoints the leader sets to itself; empty if --endpoint does not need a Service`)
	set.StringVar(&f.advertise, "advertise-address", "", "IP address at which --service reaches this process, normally that of its Pod; required with --service")
	set.StringVar(&c.Service.Endpoint, "endpoint", "", "gRPC target at which hypervisors reach the controller; defaults to port 10270 of --service; running hypervisors keep their endpoint")
	args.Section(set, "service")
	set.StringVar(&f.certificate, "authority-cert-file", "", "PEM file with the certificate of the authority that issues hypervisors' certificates; defaults to the Secret millwright-vm-authority, which is created if missing")
	set.StringVar(&f.key, "authority-private-key-file", "", "PEM file with the private key of --authority-cert-file")
	f.identity.add(set)
	args.Section(set, "certificate")
	set.StringVar(&c.Guests.Image, "hypervisor-image", "", "container image of hypervisors for virtual machines that do not name one; required")
	set.StringSliceVar(&c.Guests.Images, "hypervisor-images", nil, "comma-separated container images, as exact references with a tag or digest, that virtual machines may name in addition to --hypervisor-image; empty for none")
	set.StringSliceVar(&c.Guests.Attachments, "network-attachments", nil, "comma-separated NetworkAttachmentDefinitions, as NAMESPACE/NAME, that virtual machines of all namespaces may name in spec.networks; empty for none")
	set.StringVar(&c.Guests.Accelerator, "accelerator", "auto", "accelerator of QEMU: auto, kvm or tcg")
	f.overlay.add(set)
	set.StringSliceVar(&f.networks, "vm-network", []string{"10.77.0.0/16"}, "CIDRs of the virtual machines' network, at most one of each IP version; empty for no network")
}

// validate returns all problems with the flags.
func (f *flags) validate() error {
	c := f.config
	var wrong args.Problems
	for flag, name := range map[string]string{"namespace": c.Namespace, "leader-elect-namespace": c.Election.Namespace} {
		wrong.If(name != "" && len(utilvalidation.IsDNS1123Label(name)) > 0, "--%s: %q is not a valid namespace", flag, name)
	}
	for _, name := range c.Namespaces {
		wrong.If(len(utilvalidation.IsDNS1123Label(name)) > 0, "--vm-namespaces: %q is not a valid namespace", name)
	}
	wrong.If(net.ParseIP(c.Pages.Address) == nil, "--address: %q is not an IP address", c.Pages.Address)
	wrong.Port("port", c.Pages.Port)
	wrong.If(f.qps <= 0, "--kube-api-qps: must be greater than 0")
	wrong.If(f.burst < 0, "--kube-api-burst: must not be negative")
	wrong.If(c.Pages.Profiling.Contention && !c.Pages.Profiling.Enabled, "--contention-profiling: requires --profiling")
	wrong.If(c.LeaseRenewals <= 0, "--vm-lease-renewals: must be greater than 0")
	wrong.If(c.ConcurrentSyncs <= 0, "--concurrent-syncs: must be greater than 0")
	wrong.Negative(f.set)
	wrong.Add(managercmd.ValidateElection(c.Election))
	f.validateHypervisors(&wrong)
	f.pods.validate(&wrong, c.Guests.Accelerator)
	f.migrations.Validate(&wrong)
	return wrong.Err()
}

func (f *flags) validateHypervisors(wrong *args.Problems) {
	c := f.config
	err := portOf(f.listen)
	wrong.If(err != nil, "--listen: %v", err)
	if f.subresources != "" {
		err = portOf(f.subresources)
		wrong.If(err != nil, "--subresources-listen: %v", err)
	}
	name := c.Service.Name
	wrong.If(name != "" && len(utilvalidation.IsDNS1035Label(name)) > 0, "--service: %q is not a valid name of a Service", name)
	wrong.If(name == "" && f.subresources != "" && f.set.Changed("subresources-listen"), "--subresources-listen: requires --service")
	_, err = netip.ParseAddr(f.advertise)
	wrong.If(name != "" && err != nil, "--advertise-address: %q is not an IP address, which --service requires", f.advertise)
	wrong.If(name == "" && c.Service.Endpoint == "", "--endpoint: required without --service")
	wrong.If((f.certificate == "") != (f.key == ""), "--authority-cert-file, --authority-private-key-file: set both or neither")
	f.identity.validate(wrong)
	wrong.If(!f.identity.files.None() && f.certificate != "", "--authority-cert-file: cannot be used with --identity-cert-file")
	wrong.If(c.Guests.Image == "", "--hypervisor-image: required")
	for _, image := range c.Guests.Images {
		wrong.If(image == "" || strings.ContainsFunc(image, unicode.IsSpace), "--hypervisor-images: %q is not a container image", image)
	}
	for _, attachment := range c.Guests.Attachments {
		namespace, name, _ := strings.Cut(attachment, "/")
		wrong.If(len(utilvalidation.IsDNS1123Label(namespace))+len(utilvalidation.IsDNS1123Subdomain(name)) > 0, "--network-attachments: %q is not NAMESPACE/NAME", attachment)
	}
	accelerator := c.Guests.Accelerator
	wrong.If(!slices.Contains([]string{"auto", "kvm", "tcg"}, accelerator), "--accelerator: unknown accelerator %q; expected auto, kvm or tcg", accelerator)
	f.validateNetworks(wrong)
	f.overlay.validate(wrong)
}

func (f *flags) validateNetworks(wrong *args.Problems) {
	versions := map[bool]bool{}
	for _, text := range f.networks {
		network, err := netip.ParsePrefix(text)
		wrong.If(err != nil, "--vm-network: %q is not a network", text)
		problem := overlap.Unusable(network)
		wrong.If(err == nil && problem != "", "--vm-network: %s", problem)
		wrong.If(err == nil && versions[network.Addr().Is4()], "--vm-network: %s has two networks of the same IP version", f.networks)
		versions[network.Addr().Is4()] = true
	}
}
