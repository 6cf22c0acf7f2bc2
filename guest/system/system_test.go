package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/guest/metadata"
	"github.com/millwright-dev/millwright/guest/userdata"
)

func TestOnDisk(t *testing.T) {
	ext4 := make([]byte, 2048)
	ext4[magicAt], ext4[magicAt+1] = 0x53, 0xef
	for name, test := range map[string]struct {
		content []byte
		want    bool
	}{
		"a file system": {ext4, true}, "a blank disk": {make([]byte, 2048), false}, "a short disk": {ext4[:magicAt+1], false},
	} {
		path := filepath.Join(t.TempDir(), "disk")
		if err := os.WriteFile(path, test.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := OnDisk(path); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	if OnDisk(filepath.Join(t.TempDir(), "none")) {
		t.Error("no disk: got true")
	}
}

func TestLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := lastLine(path); got != "" {
		t.Errorf("without a log: got %q", got)
	}
	for content, want := range map[string]string{
		"": "", "one\ntwo\n\n": "two", "begin" + strings.Repeat("x", longestLine) + "end\n": strings.Repeat("x", longestLine-4) + "end",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastLine(path); got != want {
			t.Errorf("%q: got %q", content, got)
		}
	}
}

// TestProcesses is the only test that starts processes, because Processes waits for all children.
func TestProcesses(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	logged := make(chan string, 10)
	processes := NewProcesses(func(format string, arguments ...any) { logged <- format })
	shell := func(script string) Program { return Program{Args: []string{"/bin/sh", "-c", script}, Log: log} }

	if err := processes.Run(t.Context(), shell("exit 0")); err != nil {
		t.Errorf("successful program: got error %v", err)
	}
	err := processes.Run(t.Context(), shell("echo the reason; exit 3"))
	if err == nil || !strings.Contains(err.Error(), "status 3: the reason") {
		t.Errorf("failing program: got error %v", err)
	}
	if err := processes.Run(t.Context(), Program{Args: []string{"/does/not/exist"}, Log: log}); err == nil {
		t.Error("missing program: got no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- processes.Run(ctx, shell("exec sleep 1000")) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("program with a canceled context: got error %v", err)
	}

	startsOnlyEnabledServices(t, processes)

	ctx, cancel = context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		processes.Keep(ctx, shell("exit 1"))
	}()
	<-logged // it has run and will be restarted
	<-logged
	cancel()
	<-kept
}

// TestPodNetwork_IPv4AndIPv6: Pods have IPv6 addresses if the machine has one and the cluster has an IPv6 network for
// them.
func TestPodNetwork_IPv4AndIPv6(t *testing.T) {
	four, six := metadata.Link{Address: netip.MustParseAddr("10.77.0.16")}, metadata.Link{Address: netip.MustParseAddr("fd77::16")}
	for name, tc := range map[string]struct {
		pods    string
		links   []metadata.Link
		want    []string
		flannel any
	}{
		"only IPv4":    {"10.78.0.0/16,fd78::/56", []metadata.Link{four}, []string{"10.78.0.0/16"}, nil},
		"both":         {"10.78.0.0/16,fd78::/56", []metadata.Link{four, six}, []string{"10.78.0.0/16", "fd78::/56"}, "fd78::/56"},
		"IPv4 cluster": {"10.78.0.0/16", []metadata.Link{four, six}, []string{"10.78.0.0/16"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := &Node{Data: userdata.UserData{PodNetwork: tc.pods}, Links: tc.links}
			if got := n.podNetworks(); !slices.Equal(got, tc.want) {
				t.Errorf("got networks %v, want %v", got, tc.want)
			}
			config := n.flannelConfiguration()
			if config["Network"] != tc.want[0] || config["IPv6Network"] != tc.flannel || (config["EnableIPv6"] == true) != (tc.flannel != nil) {
				t.Errorf("got flannel configuration %v", config)
			}
			if _, forwards := n.sysctls()["net/ipv6/conf/all/forwarding"]; forwards != (tc.flannel != nil) {
				t.Errorf("got IPv6 forwarding %t", forwards)
			}
		})
	}
}

func TestConfigureNode(t *testing.T) {
	n := &Node{
		Data: userdata.UserData{
			Server: "https://10.77.0.2:16443", Token: "abcdef.0123456789abcdef", NodeName: "one", ProviderID: "millwright:///x",
			ClusterDNS: "10.96.0.10", Labels: map[string]string{"b": "2", "a": "1"}, Taints: []userdata.Taint{{Key: "k", Effect: "NoSchedule"}},
		},
		Links: []metadata.Link{
			{Address: netip.MustParseAddr("10.77.0.16"), Peer: netip.MustParseAddr("10.77.0.2")},
			{Address: netip.MustParseAddr("fd77::16"), Peer: netip.MustParseAddr("fd77::2")},
		},
	}
	flags := n.kubeletFlags()
	for _, want := range []string{"--hostname-override=one", "--node-ip=10.77.0.16,fd77::16", "--node-labels=a=1,b=2"} {
		if !slices.Contains(flags, want) {
			t.Errorf("flag %s is not in %v", want, flags)
		}
	}
	text, err := json.Marshal(n.kubeletConfiguration())
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		ProviderID string           `json:"providerID"`
		Taints     []userdata.Taint `json:"registerWithTaints"`
		DNS        []string         `json:"clusterDNS"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(n.Data.Taints, config.Taints); diff != "" || config.ProviderID != n.Data.ProviderID {
		t.Errorf("%s: %s", text, diff)
	}
	if diff := cmp.Diff([]string{"10.96.0.10"}, config.DNS); diff != "" {
		t.Errorf("clusterDNS: %s", diff)
	}
	if got := resolvConf(n.Links); got != "nameserver 10.77.0.3\n" {
		t.Errorf("got resolv.conf %q", got)
	}
	if got := resolvConf(n.Links[1:]); got != "nameserver fd77::3\n" {
		t.Errorf("got resolv.conf without IPv4 %q", got)
	}
}

// TestPodNetwork_Template: containerd turns the template into JSON with a range for each network of the Node. The MTU is
// the one that flannel's VXLAN allows: 1500 minus 70 bytes over IPv6, or minus 50 bytes over IPv4.
func TestPodNetwork_Template(t *testing.T) {
	file, err := template.ParseFiles("../full/root/etc/containerd/network.json")
	if err != nil {
		t.Fatal(err)
	}
	for mtu, ranges := range map[int][]string{1450: {"10.78.0.0/24"}, 1430: {"10.78.0.0/24", "fd78::/64"}} {
		var text bytes.Buffer
		data := map[string][]string{"PodCIDRRanges": ranges, "Routes": {"0.0.0.0/0", "::/0"}}
		if err := file.Execute(&text, data); err != nil {
			t.Fatal(err)
		}
		var network struct {
			Plugins []struct {
				MTU  int `json:"mtu"`
				IPAM struct {
					Ranges [][]struct{ Subnet string }
				} `json:"ipam"`
			}
		}
		if err := json.Unmarshal(text.Bytes(), &network); err != nil {
			t.Fatalf("%v: %s", err, &text)
		}
		if bridge := network.Plugins[0]; bridge.MTU != mtu || len(bridge.IPAM.Ranges) != len(ranges) {
			t.Errorf("%v: %+v", ranges, bridge)
		}
	}
}
