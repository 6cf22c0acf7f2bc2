package controlplane

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestControlPlane_FlagsForNodesThatRunPods checks the component flags for nodes that run Pods, which are set only on request.
func TestControlPlane_FlagsForNodesThatRunPods(t *testing.T) {
	cp := &ControlPlane{dir: layout(t.TempDir())}
	want := []string{"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"}
	if args := cp.advertiseArguments(); !slices.Equal(args, want) {
		t.Errorf("without Pods: %v, want %v", args, want)
	}
	if args := slices.Concat(cp.egressArguments(), cp.podNetworkArguments()); len(args) > 0 {
		t.Errorf("without Pods: %v", args)
	}
	if err := cp.writeEgress(); err != nil {
		t.Error(err)
	}
	cp.config.PodNetwork, cp.config.EgressSocket = netip.MustParsePrefix("10.78.0.0/16"), "/run/egress.sock"
	cp.config.AdvertiseAddress = netip.MustParseAddr("10.77.0.2")
	want = []string{"--advertise-address=10.77.0.2"}
	if args := cp.advertiseArguments(); !slices.Equal(args, want) {
		t.Errorf("%v, want %v", args, want)
	}
	want = []string{"--egress-selector-config-file=" + cp.dir.egress(), "--allocate-node-cidrs", "--cluster-cidr=10.78.0.0/16"}
	if args := slices.Concat(cp.egressArguments(), cp.podNetworkArguments()); !slices.Equal(args, want) {
		t.Errorf("%v, want %v", args, want)
	}
	if got := cp.serviceNetworks(); got != "10.96.0.0/16" {
		t.Errorf("the networks of Services are %s", got)
	}
	cp.config.PodNetwork6 = netip.MustParsePrefix("fd78::/56")
	want = []string{"--allocate-node-cidrs", "--cluster-cidr=10.78.0.0/16,fd78::/56"}
	if args := cp.podNetworkArguments(); !slices.Equal(args, want) {
		t.Errorf("%v, want %v", args, want)
	}
	if got := cp.serviceNetworks(); got != "10.96.0.0/16,fd6d:696c:6c77:200::/112" {
		t.Errorf("the networks of Services are %s", got)
	}
	if err := cp.writeEgress(); err != nil {
		t.Fatal(err)
	}
	if config, err := os.ReadFile(cp.dir.egress()); err != nil || !strings.Contains(string(config), `udsName: "/run/egress.sock"`) {
		t.Errorf("%s, %v", config, err)
	}
	cp.config.EgressSocket = "/" + strings.Repeat("x", longestSocket)
	if err := cp.writeEgress(); err == nil {
		t.Error("a path that no socket may have was accepted")
	}
}
