// Command kubernetes is a whole Kubernetes control plane, the programs of a node
// (kubelet and kube-proxy) and kubectl in one executable. Which of them runs is decided by the name under which it is
// called, or else by its first argument. One executable links once instead of
// seven times, and the processes of one control plane share its pages.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs name time zones

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs are the mains of this executable by their names. Each gets the
// arguments with its own name first, as the operating system would give them.
var programs = map[string]func(args []string){
	"etcd":                    etcdmain.Main,
	"kube-apiserver":          component(func() *cobra.Command { return apiserver.NewAPIServerCommand() }),
	"kube-controller-manager": component(func() *cobra.Command { return controllermanager.NewControllerManagerCommand() }),
	"kube-scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 component(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kube-proxy":              component(func() *cobra.Command { return proxy.NewProxyCommand() }),
	"kubectl":                 runKubectl,
}

func main() {
	args := os.Args
	run, ok := programs[filepath.Base(args[0])]
	if !ok && len(args) > 1 {
		args = args[1:]
		run, ok = programs[args[0]]
	}
	if !ok {
		names := slices.Sorted(maps.Keys(programs))
		fmt.Fprintf(os.Stderr, "usage: %s PROGRAM [ARGUMENTS], where PROGRAM is one of %s\n", filepath.Base(os.Args[0]), strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Args = args
	run(args)
}

func component(newCommand func() *cobra.Command) func([]string) {
	return func([]string) { os.Exit(cli.Run(newCommand())) }
}

func runKubectl(args []string) {
	logs.GlogSetter(kubectl.GetLogVerbosity(args)) // only fails for a verbosity that kubectl itself rejects
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
