package vm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// domainField is the field of a provider specification that names the failure domain.
const domainField = "failureDomain"

// AttributeLabel is an attribute of failure domains: the label of Nodes whose value is the
// name of the failure domain.
const AttributeLabel = "label"

// ListFailureDomains implements driver.FailureDomains. It returns the zones of the hosts, and
// each host without a zone, whether hosts are ready or not. It uses only the Secret of the
// request.
func (d *Driver) ListFailureDomains(ctx context.Context, req *driver.ListFailureDomainsRequest) (*driver.ListFailureDomainsResponse, error) {
	var kubeconfig []byte
	if req.Secret != nil {
		kubeconfig = req.Secret.Data[kubeconfigKey]
	}
	cluster, err := d.clusters.get(kubeconfig)
	if err != nil {
		return nil, err
	}
	hosts := &metav1.PartialObjectMetadataList{}
	hosts.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := cluster.List(ctx, hosts, client.MatchingLabels{vmv1alpha1.HostKey: ""}); err != nil {
		return nil, coded("listing hosts", err)
	}
	return &driver.ListFailureDomainsResponse{FailureDomains: domainsOf(hosts.Items)}, nil
}

// domainsOf returns the failure domains of hosts, by the rule by which the VM controller
// selects the hosts of a VM.
func domainsOf(hosts []metav1.PartialObjectMetadata) []driver.FailureDomain {
	labels := map[string]string{}
	for i := range hosts {
		zone, hasZone := hosts[i].Labels[corev1.LabelTopologyZone]
		host := hosts[i].Labels[corev1.LabelHostname]
		switch {
		case zone != "":
			labels[zone] = corev1.LabelTopologyZone
		case !hasZone && host != "" && labels[host] == "":
			labels[host] = corev1.LabelHostname
		}
	}
	var domains []driver.FailureDomain
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		domains = append(domains, driver.FailureDomain{Name: name, Attributes: map[string]string{AttributeLabel: labels[name]}})
	}
	return domains
}

// PlaceMachine implements driver.FailureDomains: it sets the field failureDomain.
func (d *Driver) PlaceMachine(req *driver.PlaceMachineRequest) (*driver.PlaceMachineResponse, error) {
	if wrong := validation.IsValidLabelValue(req.FailureDomain); req.FailureDomain == "" || len(wrong) > 0 {
		return nil, status.Error(codes.NotFound, fmt.Sprintf("no host can have %q as its zone or name: %s", req.FailureDomain, strings.Join(wrong, ", ")))
	}
	spec, err := driver.WithField(req.MachineClass.ProviderSpec, domainField, req.FailureDomain)
	if err != nil {
		return nil, err
	}
	return &driver.PlaceMachineResponse{ProviderSpec: spec}, nil
}
