// Command flanneld connects the Pods of all Nodes through flannel's VXLAN, with flannel's own packages.
// flannel's own program depends on the networks of several clouds, whose modules are not available everywhere.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "`file` with the Node's credentials; NODE_NAME is its name")
	network := flag.String("network", "", "`file` with flannel's configuration")
	card := flag.String("interface", "", "network `card` through which other Nodes are reached")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, *network, *card); err != nil {
		fmt.Fprintln(os.Stderr, "flanneld:", err)
		os.Exit(1)
	}
}

// annotations is the prefix of flannel's annotations of Nodes.
const annotations = "flannel.alpha.coreos.com"

func run(ctx context.Context, kubeconfig, network, card string) error {
	subnets, err := kube.NewSubnetManager(ctx, "", kubeconfig, annotations, network, false)
	if err != nil {
		return err
	}
	config, err := subnets.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("reading %s: %w", network, err)
	}
	stack, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return err
	}
	outside, err := ipmatch.LookupExtIface(card, "", "", stack, ipmatch.PublicIPOpts{})
	if err != nil {
		return fmt.Errorf("inspecting %s: %w", card, err)
	}
	var group sync.WaitGroup
	defer group.Wait()
	vxlan, err := backend.NewManager(ctx, subnets, outside).GetBackend(config.BackendType)
	if err != nil {
		return err
	}
	joined, err := vxlan.RegisterNetwork(ctx, &group, config)
	if err != nil {
		return fmt.Errorf("joining the network: %w", err)
	}
	if err := leadOutside(ctx, config, joined); err != nil {
		return err
	}
	fmt.Printf("the Pods of this Node are in %s\n", joined.Lease().Subnet)
	joined.Run(ctx)
	if err := ctx.Err(); err != nil {
		return nil // a signal
	}
	return errors.New("the network stopped")
}

// leadOutside lets Pods connect to non-Pod addresses, with the address of their Node.
func leadOutside(ctx context.Context, config *subnet.Config, joined backend.Network) error {
	rules := &nftables.NFTablesManager{}
	if err := rules.Init(ctx); err != nil {
		return fmt.Errorf("preparing the packet rules: %w", err)
	}
	err := rules.SetupAndEnsureMasqRules(ctx, config.Network, ip.IP4Net{}, ip.IP4Net{}, config.IPv6Network, ip.IP6Net{}, ip.IP6Net{},
		joined.Lease(), 0, false)
	if err != nil {
		return fmt.Errorf("creating the packet rules: %w", err)
	}
	rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, 0)
	return nil
}
