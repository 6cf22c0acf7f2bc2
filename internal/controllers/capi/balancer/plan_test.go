package balancer

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
)

func TestPlan(t *testing.T) {
	other := types.NamespacedName{Namespace: "ns", Name: "other"}
	at := func(port int32) core.Endpoint { return core.Endpoint{Host: "lb", Port: port} }
	for name, tc := range map[string]struct {
		facts facts
		want  plan
	}{
		"the first port":     {facts{}, plan{port: 100, claim: true}},
		"the next free port": {facts{others: map[int32]types.NamespacedName{100: other, 102: other}}, plan{port: 101, claim: true}},
		"no free port": {
			facts{others: map[int32]types.NamespacedName{100: other, 101: other, 102: other}},
			plan{reason: infrav1.ReasonNoFreePort, message: "All ports of the load balancer (100 to 102) are used by other MillwrightClusters"},
		},
		"paused":                     {facts{paused: true}, plan{}},
		"endpoint":                   {facts{endpoint: at(102)}, plan{port: 102}},
		"endpoint, paused":           {facts{endpoint: at(102), paused: true}, plan{port: 102}},
		"endpoint, open":             {facts{endpoint: at(102), open: 102}, plan{port: 102}},
		"endpoint, other ports used": {facts{endpoint: at(102), others: map[int32]types.NamespacedName{100: other}}, plan{port: 102}},
		"endpoint of another": {
			facts{endpoint: at(102), others: map[int32]types.NamespacedName{102: other}},
			plan{reason: infrav1.ReasonPortTaken, message: "Port 102 is already used by MillwrightCluster ns/other"},
		},
		"open": {facts{endpoint: at(102), open: 102}, plan{port: 102}},
		"open, but the leader assigned it to another": {
			facts{endpoint: at(102), open: 102, standby: true, others: map[int32]types.NamespacedName{102: other}},
			plan{reason: infrav1.ReasonPortTaken, message: "Port 102 is already used by MillwrightCluster ns/other"},
		},
		"limit reached": {
			facts{limit: 2, siblings: 2},
			plan{reason: infrav1.ReasonTooManyInNamespace, message: "Other MillwrightClusters in this namespace already use the maximum of 2 load balancer ports per namespace"},
		},
		"last port of the namespace":    {facts{limit: 2, siblings: 1}, plan{port: 100, claim: true}},
		"endpoint, limit reached":       {facts{endpoint: at(102), limit: 2, siblings: 2}, facts{limit: 2}.refusal()},
		"endpoint, open, limit reached": {facts{endpoint: at(102), open: 102, limit: 2, siblings: 2}, plan{port: 102}},
		"standby":                       {facts{standby: true}, plan{}},
		"endpoint, standby":             {facts{endpoint: at(102), standby: true}, plan{port: 102}},
		"port too low": {
			facts{endpoint: at(99)},
			plan{reason: infrav1.ReasonPortNotAllowed, message: "Port 99 of the endpoint is not one of the load balancer's ports (100 to 102)"},
		},
		"port too high": {
			facts{endpoint: at(6443)},
			plan{reason: infrav1.ReasonPortNotAllowed, message: "Port 6443 of the endpoint is not one of the load balancer's ports (100 to 102)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.facts.first, tc.facts.last = 100, 102
			if diff := cmp.Diff(tc.want, planFor(tc.facts), cmp.AllowUnexported(plan{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
