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
			plan{reason: infrav1.ReasonNoFreePort, message: "All ports of the load balancer, 100 to 102, are endpoints of other MillwrightClusters"},
		},
		"paused":                  {facts{paused: true}, plan{}},
		"has one":                 {facts{given: at(102)}, plan{port: 102}},
		"has one and is paused":   {facts{given: at(102), paused: true}, plan{port: 102}},
		"has one that is open":    {facts{given: at(102), held: 102}, plan{port: 102}},
		"has one, others as well": {facts{given: at(102), others: map[int32]types.NamespacedName{100: other}}, plan{port: 102}},
		"has that of another": {
			facts{given: at(102), others: map[int32]types.NamespacedName{102: other}},
			plan{reason: infrav1.ReasonPortTaken, message: "Port 102 is that of MillwrightCluster ns/other"},
		},
		"is open": {facts{given: at(102), held: 102}, plan{port: 102}},
		"is open, and another process gave it away": {
			facts{given: at(102), held: 102, standsBy: true, others: map[int32]types.NamespacedName{102: other}},
			plan{reason: infrav1.ReasonPortTaken, message: "Port 102 is that of MillwrightCluster ns/other"},
		},
		"too many in the namespace": {
			facts{limit: 2, siblings: 2},
			plan{reason: infrav1.ReasonTooManyInNamespace, message: "The load balancer gives a namespace 2 ports, which other MillwrightClusters of this one have"},
		},
		"the last of the namespace":              {facts{limit: 2, siblings: 1}, plan{port: 100, claim: true}},
		"has one, and its namespace too many":    {facts{given: at(102), limit: 2, siblings: 2}, facts{limit: 2}.refusal()},
		"was there before the limit was reached": {facts{given: at(102), held: 102, limit: 2, siblings: 2}, plan{port: 102}},
		"stands by":                              {facts{standsBy: true}, plan{}},
		"has one and stands by":                  {facts{given: at(102), standsBy: true}, plan{port: 102}},
		"below": {
			facts{given: at(99)},
			plan{reason: infrav1.ReasonPortNotAllowed, message: "The endpoint has port 99, and the load balancer has ports 100 to 102"},
		},
		"above": {
			facts{given: at(6443)},
			plan{reason: infrav1.ReasonPortNotAllowed, message: "The endpoint has port 6443, and the load balancer has ports 100 to 102"},
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
