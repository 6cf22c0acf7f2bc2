package manager

import (
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/connect"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/manager"
)

// bootstrapGroup matches valid groups of bootstrap tokens. API servers reject tokens with other groups.
var bootstrapGroup = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)

// validate returns all problems with the flags.
func (f *Flags) validate() error {
	c := f.Config
	var wrong args.Problems
	wrong.If(f.target == connect.None && f.control == "", "--control-kubeconfig: required if --target-kubeconfig is none")
	wrong.Add(f.validateAPIs())
	f.validateNames(&wrong)
	wrong.Add(f.Driver.Plugins.Validate())
	f.ignored.problems(&wrong)
	wrong.If(c.ApproveNodeCertificates && (f.target == connect.None || !slices.Contains(f.apis, string(manager.APIMCM))), "--approve-node-certificates: requires a target cluster, and mcm in --apis")
	wrong.If(net.ParseIP(c.Address) == nil, "--address: %q is not an IP address", c.Address)
	wrong.Port("port", c.Port)
	wrong.Port("webhook-port", c.Webhooks.Port)
	wrong.If(c.Webhooks.Port != 0 && c.Webhooks.CertDir == "", "--webhook-port: requires --webhook-cert-dir")
	wrong.If(c.Webhooks.HookClientCAs != "" && (c.Webhooks.Port == 0 || !slices.Contains(f.apis, string(manager.APICAPI))), "--runtime-hook-client-ca-file: requires --webhook-port, and capi in --apis")
	wrong.If(!(f.qps > 0 && f.qps <= math.MaxFloat32), "--kube-api-qps: must be a number greater than 0") // also false for NaN
	wrong.If(f.burst < 0, "--kube-api-burst: must not be negative")
	wrong.If(c.Profiling.Contention && !c.Profiling.Enabled, "--contention-profiling: requires --profiling")
	wrong.Add(f.ValidateTuning())
	return wrong.Err()
}

// validateNames adds an error for each invalid name. It does not check whether the objects exist.
func (f *Flags) validateNames(wrong *args.Problems) {
	c := f.Config
	for flag, name := range map[string]string{"namespace": f.namespace, "leader-elect-namespace": c.Election.Namespace} {
		wrong.If(name != "" && len(utilvalidation.IsDNS1123Label(name)) > 0, "--%s: %q is not a valid namespace name", flag, name)
	}
	lease := c.Election.ClusterAPILease
	wrong.If(lease != "" && len(utilvalidation.IsDNS1123Subdomain(lease)) > 0, "--leader-elect-resource-name: %q is not a valid lease name", lease)
	filter := c.ClusterAPI.WatchFilter
	wrong.If(len(utilvalidation.IsValidLabelValue(filter)) > 0, "--watch-filter: %q is not a valid label value", filter)
	if f.Driver.Name != "" {
		_, err := f.Driver.chosen()
		wrong.Add(err)
	}
}

func (f *Flags) validateAPIs() error {
	c := f.Config
	known := []string{string(manager.APIMCM), string(manager.APICAPI)}
	all := len(f.apis) == 1 && f.apis[0] == string(manager.APICAPI)
	switch unknown := slices.IndexFunc(f.apis, func(api string) bool { return !slices.Contains(known, api) }); {
	case len(f.apis) == 0:
		return errors.New("--apis: must not be empty")
	case unknown >= 0:
		return fmt.Errorf("--apis: unknown API %q; must be one or more of %s", f.apis[unknown], strings.Join(known, ", "))
	case f.namespace == "" && !all:
		return errors.New("--namespace: must not be empty unless --apis is capi")
	case f.namespace == "" && c.Election.Enabled && c.Election.Namespace == "":
		return errors.New("--leader-elect-namespace: required if --namespace is empty")
	}
	return f.validateClusterAPI()
}

func (f *Flags) validateClusterAPI() error {
	lease := f.Config.Election.ClusterAPILease
	if slices.Contains([]string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager}, lease) {
		return fmt.Errorf("--leader-elect-resource-name: %q is the lease of the MCM process with this name, which could then never become the leader; choose another name", lease)
	}
	return nil
}

// ValidateTuning returns all problems with the flags that AddTuning adds.
func (f *Flags) ValidateTuning() error {
	c := f.Config
	var wrong args.Problems
	wrong.If(c.ConcurrentSyncs <= 0, "--concurrent-syncs: must be greater than 0")
	wrong.Negative(f.flags)
	if c.Half != manager.HalfSets {
		f.validateMachines(&wrong)
	}
	wrong.Add(ValidateElection(c.Election))
	return wrong.Err()
}

func (f *Flags) validateMachines(wrong *args.Problems) {
	c := f.Config
	wrong.If(!slices.Contains([]orphans.Mode{orphans.Delete, orphans.Report, orphans.Off}, c.Orphans.Mode), "--machine-safety-orphan-vms: %q is not one of delete, report, off", c.Orphans.Mode)
	wrong.If(c.Drain.Strategy != drain.Serial && c.Drain.Strategy != drain.Independent, "--drain-volume-pods: %q is neither serial nor independent", c.Drain.Strategy)
	wrong.If(c.DriverTimeout == 0, "--driver-timeout: must be greater than 0")
	_, err := intstr.GetScaledValueFromIntOrPercent(ptr.To(intstr.Parse(f.replacements)), 100, false)
	wrong.If(err != nil, "--machine-max-health-replacements: %q is neither a number nor a percentage", f.replacements)
	total, err := intstr.GetScaledValueFromIntOrPercent(ptr.To(intstr.Parse(f.totalReplacements)), 100, false)
	wrong.If(f.totalReplacements != "" && (err != nil || total < 0), "--machine-max-total-health-replacements: %q is neither a non-negative number nor a percentage", f.totalReplacements)
	for _, name := range noderef.ParseConditions(f.nodeConditions) {
		wrong.If(f.nodeConditions != "" && len(utilvalidation.IsQualifiedName(name)) > 0, "--node-conditions: %q is not a valid condition type", name)
	}
	for group := range strings.SplitSeq(c.BootstrapTokenGroups, ",") {
		wrong.If(c.BootstrapTokenGroups != "" && !bootstrapGroup.MatchString(group), "--bootstrap-token-auth-extra-groups: %q does not match %s; API servers would reject its tokens", group, bootstrapGroup)
	}
	wrong.If(c.Health.OutagePeriod < c.Health.OutageTimeout, "--machine-safety-apiserver-statuscheck-period: %v is less than --machine-safety-apiserver-statuscheck-timeout (%v)", c.Health.OutagePeriod, c.Health.OutageTimeout)
}

// ValidateElection returns an error if client-go would reject the durations, or if they would make leader election
// unreliable.
func ValidateElection(e manager.Election) error {
	switch {
	case !e.Enabled:
		return nil
	case e.LeaseDuration < time.Second:
		return errors.New("--leader-elect-lease-duration: must be at least 1s")
	case e.RetryPeriod <= 0, float64(e.RenewDeadline) <= leaderelection.JitterFactor*float64(e.RetryPeriod), e.LeaseDuration <= e.RenewDeadline:
		return fmt.Errorf("--leader-elect-*: the lease duration must be greater than the renew deadline, which must be greater than %v times the retry period", leaderelection.JitterFactor)
	}
	return nil
}
