// Command machine-controller is the machine controller of this provider. Every provider of MCM has one.
package main

import (
	"fmt"
	"os"

	_ "github.com/gardener/machine-controller-manager/pkg/util/client/metrics/prometheus" // for client metric registration
	"github.com/gardener/machine-controller-manager/pkg/util/provider/app"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/app/options"
	_ "github.com/gardener/machine-controller-manager/pkg/util/reflector/prometheus" // for reflector metric registration
	_ "github.com/gardener/machine-controller-manager/pkg/util/workqueue/prometheus" // for workqueue metric registration
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"

	"github.com/millwright-dev/millwright/examples/mcm-provider/pkg/folder"
)

func main() {
	s := options.NewMCServer()
	s.AddFlags(pflag.CommandLine)

	flag.InitFlags()
	logs.InitLogs()
	defer logs.FlushLogs()

	if err := run(s); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n", err)
		os.Exit(1)
	}
}

// run connects to the target cluster, where VMs become nodes, and runs the controllers. Without a kubeconfig, the target
// cluster is the one that this program runs in.
func run(s *options.MCServer) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.TargetKubeconfig)
	if err != nil {
		return err
	}
	target, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return app.Run(s, folder.NewDriver(target.CoreV1().Nodes()))
}
